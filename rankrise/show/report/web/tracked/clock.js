// Steps of training: the axis that all plots of time share, and zoom together.

import { choose, state, watch, Zoom } from "../state.js";
import { here } from "./runs.js";

export const timeZoom = new Zoom();

export const timePlot = {
  zoom: timeZoom,
  allLabels: true,
  logX: () => state.logTime,
  onPick: (moment) => choose({ place: here().nearest(moment) }),
};

/** The slider's step on a plot of time. */
export function follow(plot) {
  watch(["place", "run"], () => plot.setCursor(here().times[state.place] ?? null));
}
