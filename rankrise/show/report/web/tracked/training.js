// Loss, accuracy or perplexity (on further texts too), and learning rate; and the stages in numbers.

import { known } from "../data.js";
import { absent, h, number, plural, put, scrolling, table } from "../dom.js";
import { pair } from "../plot.js";
import { state, watch } from "../state.js";
import { here, plotOfTime } from "./run.js";

const TITLES = {
  loss: "Training loss",
  validation_loss: "Validation loss",
  accuracy: "Validation accuracy",
  perplexity: "Validation perplexity",
  learning_rate: "Learning rate",
};
const CURVES_NAMED = 4;

/** "perplexity/wikitext-103" is a perplexity on a further text; of "word_perplexity/…", by words, not tokens. */
function metricTitle(metric) {
  const [kind, text] = metric.split(/\/(.*)/s);
  return TITLES[metric] ?? `Perplexity${kind === "word_perplexity" ? " by words" : ""}, ${text}`;
}

export function training(runs) {
  const metrics = new Set([...Object.keys(TITLES), ...runs.flatMap((run) => Object.keys(run.training))]);
  const none = absent("This run has no record of loss or metrics.");
  watch(["run"], () => (none.hidden = Object.keys(here().training).length > 0));
  put("training-here", none, pair(...[...metrics].map(metricPlot)));
}

function metricPlot(metric) {
  const title = metricTitle(metric);
  return plotOfTime({
    name: title,
    title,
    floor: metric === "learning_rate" ? 0 : undefined,
    tip: (moment, line, y) => [`${line.name} ${number(y)}`, `${here().clock} ${number(moment, 3)}`],
    on: ["logLoss"],
    content: (run) => {
      const record = run.training[metric];
      if (!record) return null;
      const name = title[0].toLowerCase() + title.slice(1);
      const xs = record.steps.map((step) => run.at(step));
      const line = { name, style: "main", ...known(xs, record.values) };
      const windowed = record.window > 1 ? ` Each point is the mean of ${record.window} recorded.` : "";
      const logY = /loss|perplexity/.test(metric) && state.logLoss;
      return { lines: [line], logY, summary: `${course(run, record)}${windowed}${run.ruleNote}` };
    },
  });
}

/** "From 3.4 to 1.06.", of the recorded values themselves. */
function course(run, record) {
  const { first, last, steps, values } = record;
  if (values.length === 1) return `${number(first)} at ${run.moment(steps[0])}, the only one recorded.`;
  const written = new Set([first, last, ...values].map((value) => number(value)));
  if (written.size === 1) return `${number(first)} throughout.`;
  return `From ${number(first)} to ${number(last)}${run.whenLast(record)}.`;
}

/** Every stage found: when, how sure, and in which curves. */
export function stages() {
  const holder = h("div");
  watch(["run"], () => {
    const run = here();
    if (!run.stages.length) return holder.replaceChildren(absent(run.about_stages));
    const rows = run.stages.map(({ step, interval, probability, curves }, index) => {
      const more = curves.length > CURVES_NAMED ? ` and ${curves.length - CURVES_NAMED} more` : "";
      return [
        index + 1,
        step,
        ...(run.epoch_steps ? [number(run.at(step), 3)] : []),
        interval.join(" to "),
        probability > 0.99 ? "> 99 %" : number(probability, 2),
        curves.slice(0, CURVES_NAMED).join(", ") + more,
      ];
    });
    const head = ["stage", "step", ...(run.epoch_steps ? ["epoch"] : []), "within", "probability", "seen in"];
    const made = table(`${plural(run.stages.length, "stage")} of ${run.name}`, head, rows);
    made.classList.add("found");
    holder.replaceChildren(scrolling(`Stages of ${run.name}`, made));
  });
  put("found-here", holder);
}
