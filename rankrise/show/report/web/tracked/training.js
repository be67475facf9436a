// Loss, accuracy or perplexity, and learning rate; and the stages in numbers.

const METRICS = {
  loss: "Training loss",
  validation_loss: "Validation loss",
  accuracy: "Validation accuracy",
  perplexity: "Validation perplexity",
  learning_rate: "Learning rate",
};

function training() {
  const holder = h("div", { class: "pair" });
  const plots = new Map(Object.keys(METRICS).map((metric) => [metric, metricPlot(metric)]));
  watch(["run"], () => {
    const found = Object.keys(METRICS).filter((metric) => here().training[metric]);
    holder.replaceChildren(...(found.length ? found.map((metric) => plots.get(metric).figure) : [absent("This run has no record of loss or metrics.")]));
  });
  document.getElementById("training-here").append(h("div", { class: "run" }, holder));
}

function metricPlot(metric) {
  const plot = new Plot({
    ...timePlot,
    name: METRICS[metric],
    title: METRICS[metric],
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
    const line = { name: METRICS[metric].toLowerCase(), style: "main", xs: record.steps.map((step) => run.at(step)), ys };
    const windowed = record.window > 1 ? ` Each point is the mean of ${record.window} recorded.` : "";
    plot.show({ lines: [line], rules: run.rules, summary: `From ${number(ys[0])} to ${number(ys[ys.length - 1])}.${windowed}${run.ruleNote}` });
  });
  follow(plot);
  return plot;
}

/** Every stage found: when, how sure, and in which curves. */
function stages() {
  const holder = h("div", { class: "run" });
  watch(["run"], () => {
    const run = here();
    if (!run.stages.length) return holder.replaceChildren(absent("No stages were found in this run: its loss and ranks change without a step that stands out of their noise."));
    const rows = run.stages.map((stage, index) => [
      index + 1,
      stage.step,
      run.epoch_steps ? number(run.at(stage.step), 3) : "–",
      stage.interval.join(" to "),
      stage.probability > 0.99 ? "> 99 %" : number(stage.probability, 2),
      stage.curves.slice(0, 4).join(", ") + (stage.curves.length > 4 ? ` and ${stage.curves.length - 4} more` : ""),
    ]);
    const made = table(`${plural(run.stages.length, "stage")} of ${run.name}`, ["stage", "step", "epoch", "within", "probability", "seen in"], rows);
    made.classList.add("found");
    holder.replaceChildren(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Stages of ${run.name}` }, made));
  });
  document.getElementById("found-here").append(holder);
}
