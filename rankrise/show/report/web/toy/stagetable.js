// Every stage in numbers: what Algorithm 1 says, and when the flow does it.

import { fixed, h, number, plural, scaleText, signed, table } from "../dom.js";
import { absent, sideBySide } from "../layout.js";
import { choose, state, watch } from "../state.js";

/** With more stages, the table scrolls in itself. */
const MOST_ROWS = 30;

export function stageTable(runs) {
  sideBySide("table-here", runs, (run) => {
    const holder = h("div", { class: "scroll stage-list", tabindex: 0, role: "region", "aria-label": `Stages of ${run.name}` });
    watch(["alpha", "seed"], () => {
      const { seed } = run;
      if (!seed) return holder.replaceChildren(absent("Algorithm 1 has not been run here."));
      const made = table(tableCaption(seed), tableHead(seed), seed.staircase.stages.map((stage, index) => stageRow(seed, stage, index)));
      made.querySelectorAll("tbody tr").forEach((row, index) => {
        row.addEventListener("click", () => choose({ time: seed.staircase.times[index] }));
      });
      holder.classList.toggle("tall", seed.staircase.stages.length > MOST_ROWS);
      holder.replaceChildren(made);
    });
    watch(["time", "alpha", "seed"], () => {
      const begun = run.seed?.staircase.begun(state.time) ?? 0;
      holder.querySelectorAll("tbody tr").forEach((row, index) => row.classList.toggle("current", index === begun - 1));
    });
    return holder;
  });
}

function tableCaption(seed) {
  const count = plural(seed.staircase.times.length, "stage");
  return seed.flow ? `${count}; the flow is the one at α = ${scaleText(state.alpha)}` : count;
}

function tableHead(seed) {
  const flow = seed.flow ? ["flow", "flow − T"] : [];
  return ["stage", "T", "coordinate", "sign", ...flow, "loss after", "active", "runner-up", "remarks"];
}

function stageRow(seed, stage, index) {
  const { staircase, flow } = seed;
  const first = staircase.order.get(stage.coordinate) === index;
  const since = flow?.activeNear(stage.coordinate, stage.time) ?? null;
  const difference = since === null ? null : since - stage.time;
  const names = (coordinates) => coordinates.map((coordinate) => seed.labels[coordinate]).join(", ");
  const remarks = [
    first ? "" : "again",
    stage.left.length ? `${names(stage.left)} left` : "",
    stage.tied.length ? `tied with ${names(stage.tied)}` : "",
  ].filter(Boolean);
  return [
    index + 1,
    fixed(stage.time, 4),
    seed.labels[stage.coordinate],
    stage.sign > 0 ? "+" : "−",
    ...(flow ? [fixed(since, 4), difference === null ? "–" : signed(difference, 4)] : []),
    number(stage.loss),
    stage.point.length,
    fixed(stage.runner_up, 4),
    remarks.join("; "),
  ];
}
