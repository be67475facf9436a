// Loss, accuracy or perplexity (on further texts too), and learning rate; and the stages in numbers.

import { state, watch } from "../controls.js";
import { known } from "../data.js";
import { absent, h, number, plural, put, scrolling, table } from "../dom.js";
import { pair } from "../plot.js";
import { here, plotOfTime, runs } from "./run.js";

const TITLES = {
  loss: "Training loss",
  validation_loss: "Validation loss",
  accuracy: "Validation accuracy",
  perplexity: "Validation perplexity",
  learning_rate: "Learning rate",
};
const CURVES_NAMED = 4;

export function training() {
  const metrics = new Set([...Object.keys(TITLES), ...runs.flatMap((run) => Object.keys(run.training))]);
  const none = absent("This run has no record of loss or metrics.");
  watch(["run"], () => (none.hidden = Object.keys(here().training).length > 0));
  put("training-here", none, pair(...[...metrics].map(metricPlot)));
}

function metricPlot(metric) {
  // "perplexity/wikitext-103" is a perplexity on a further text; "word_perplexity/…" is by words, not tokens.
  const [kind, text] = metric.split(/\/(.*)/s);
  const title = TITLES[metric] ?? `Perplexity${kind === "word_perplexity" ? " by words" : ""}, ${text}`;
  return plotOfTime({
    name: title,
    title,
    height: 230,
    floor: metric === "learning_rate" ? 0 : undefined,
    tip: (moment, line, y) => [`${line.name} ${number(y)}`, `${here().clock} ${number(moment, 3)}`],
    on: ["logLoss"],
    content: (run) => {
      const record = run.training[metric];
      if (!record) return null;
      const { first, last, steps, values, window } = record;
      const line = { name: title[0].toLowerCase() + title.slice(1), style: "main" };
      const windowed = window > 1 ? ` Each point is the mean of ${window} recorded.` : "";
      const logY = /loss|perplexity/.test(metric) && state.logLoss;
      const only = `${number(last)} at ${run.moment(steps[0])}`;
      const course = steps.length > 1 ? `From ${number(first)} to ${number(last)}` : only;
      const lines = [{ ...line, ...known(steps.map((step) => run.at(step)), values) }];
      return { lines, logY, summary: `${course}.${windowed}` };
    },
  });
}

/** Every stage found: when, how sure, and in which curves. */
export function stages() {
  const holder = h("div");
  watch(["run"], () => {
    const run = here();
    if (!run.stages.length) return holder.replaceChildren(absent(run.about_stages));
    const rows = run.stages.map(({ step, interval, probability, curves }, index) => {
      const more = curves.length > CURVES_NAMED ? ` and ${curves.length - CURVES_NAMED} more` : "";
      const when = run.epoch_steps ? [step, number(run.at(step), 3)] : [step];
      const sure = probability > 0.99 ? "> 99 %" : number(probability, 2);
      return [index + 1, ...when, interval.join(" to "), sure, curves.slice(0, CURVES_NAMED).join(", ") + more];
    });
    const head = ["stage", "step", ...(run.epoch_steps ? ["epoch"] : []), "within", "probability", "seen in"];
    const made = table(`${plural(rows.length, "stage")} of ${run.name}`, head, rows);
    holder.replaceChildren(scrolling(`Stages of ${run.name}`, made, "found"));
  });
  put("found-here", holder);
}
