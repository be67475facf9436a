// Rescaled time: the axis that all plots of time share, and zoom together.

import { choose, Zoom } from "../state.js";

export const timeZoom = new Zoom();

export const timePlot = {
  xLabel: "rescaled time t / log(1/α)",
  xLabelShort: "rescaled time",
  zoom: timeZoom,
  onPick: (time) => choose({ time }),
};
