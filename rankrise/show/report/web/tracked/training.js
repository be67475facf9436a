// Loss, accuracy or perplexity (on further texts too), and learning rate; and the stages in numbers.

import { valueAt } from "../curves.js";
import { h, number, plural, table } from "../dom.js";
import { absent } from "../layout.js";
import { Plot } from "../plot.js";
import { state, watch } from "../state.js";
import { follow, timePlot } from "./clock.js";
import { here } from "./runs.js";

const METRICS = {
  loss: "Training loss",
  validation_loss: "Validation loss",
  accuracy: "Validation accuracy",
  perplexity: "Validation perplexity",
  learning_rate: "Learning rate",
};

/** "perplexity/wikitext-103", a perplexity on a further text, is "Perplexity, wikitext-103"; of "word_perplexity/…" words are counted, not tokens. */
function metricTitle(metric) {
  const [kind, text] = metric.split(/\/(.*)/s);
  return METRICS[metric] ?? `Perplexity${kind === "word_perplexity" ? " by words" : ""}, ${text}`;
}

export function training(runs) {
  const holder = h("div", { class: "pair" });
  const metrics = new Set([...Object.keys(METRICS), ...runs.flatMap((run) => Object.keys(run.training))]);
  const plots = new Map([...metrics].map((metric) => [metric, metricPlot(metric)]));
  watch(["run"], () => {
    const found = [...metrics].filter((metric) => here().training[metric]);
    holder.replaceChildren(...(found.length ? found.map((metric) => plots.get(metric).figure) : [absent("This run has no record of loss or metrics.")]));
  });
  document.getElementById("training-here").append(h("div", { class: "run" }, holder));
}

function metricPlot(metric) {
  const title = metricTitle(metric);
  const plot = new Plot({
    ...timePlot,
    name: title,
    title,
    xLabel: "",
    logY: () => /loss|perplexity/.test(metric) && state.logLoss,
    floor: metric === "learning_rate" ? 0 : undefined,
    tip: (moment, line) => line && [`${line.name} ${number(valueAt(line, moment))}`, `${here().clock} ${number(moment, 3)}`],
  });
  watch(["run", "logTime", "logLoss"], () => {
    const run = here();
    const record = run.training[metric];
    plot.options.xLabel = run.clock;
    if (!record) return plot.show({ lines: [] });
    const ys = record.values;
    const line = { name: title[0].toLowerCase() + title.slice(1), style: "main", xs: record.steps.map((step) => run.at(step)), ys };
    const windowed = record.window > 1 ? ` Each point is the mean of ${record.window} recorded.` : "";
    const alone = `${number(ys[0])} at ${run.moment(record.steps[0])}, the only one recorded.`;
    const values = ys.length > 1 ? course(run, record) : alone;
    plot.show({ lines: [line], rules: run.rules, summary: `${values}${windowed}${run.ruleNote}` });
  });
  follow(plot);
  return plot;
}

/** "From 3.4 to 1.06.", of the recorded values themselves. */
function course(run, record) {
  const { first, last, values } = record;
  if ([last, ...values].every((value) => value === first)) return `${number(first)} throughout.`;
  return `From ${number(first)} to ${number(last)}${run.whenLast(record)}.`;
}

/** Every stage found: when, how sure, and in which curves. */
export function stages() {
  const holder = h("div", { class: "run" });
  watch(["run"], () => {
    const run = here();
    if (!run.stages.length) return holder.replaceChildren(absent(run.about_stages));
    const rows = run.stages.map((stage, index) => [
      index + 1,
      stage.step,
      ...(run.epoch_steps ? [number(run.at(stage.step), 3)] : []),
      stage.interval.join(" to "),
      stage.probability > 0.99 ? "> 99 %" : number(stage.probability, 2),
      stage.curves.slice(0, 4).join(", ") + (stage.curves.length > 4 ? ` and ${stage.curves.length - 4} more` : ""),
    ]);
    const head = ["stage", "step", ...(run.epoch_steps ? ["epoch"] : []), "within", "probability", "seen in"];
    const made = table(`${plural(run.stages.length, "stage")} of ${run.name}`, head, rows);
    made.classList.add("found");
    holder.replaceChildren(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Stages of ${run.name}` }, made));
  });
  document.getElementById("found-here").append(holder);
}
