// Plots over rescaled time, which zoom together.

import { Plot } from "../plot.js";
import { choose, state, Zoom } from "../state.js";

export const timeZoom = new Zoom();

export function plotOfTime(options) {
  return new Plot({
    xLabel: "rescaled time t / log(1/α)",
    xLabelShort: "rescaled time",
    zoom: timeZoom,
    someLabels: true,
    cursor: [["time"], () => state.time],
    onPick: (time) => choose({ time }),
    ...options,
  });
}
