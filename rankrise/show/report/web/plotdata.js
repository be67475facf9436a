// The numbers beneath a plot: a line each as a table, and every point as CSV.

import { h, number, table } from "./dom.js";

/** The table and the button that saves, put into a plot's details when they are opened. */
export function fillPlotData(plot) {
  const { data, options, content } = plot;
  if (!data.open || data.querySelector("table")) return;
  const rows = content.lines.map(({ name, label, ys }) => {
    const values = Array.from(ys);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity);
    const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    return [name ?? label, values[0], values[values.length - 1], low, high].map((v, i) => (i ? number(v) : v));
  });
  const save = h("button", { type: "button", onclick: () => savePlotData(plot) }, "Save every point as CSV");
  const caption = `${options.name}: each line in numbers`;
  const made = table(caption, ["line", "at the start", "at the end", "smallest", "largest"], rows);
  data.append(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, made), save);
}

function savePlotData({ options, content }) {
  const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const rows = content.lines.flatMap(({ name, label, xs, ys }) =>
    Array.from(xs, (x, index) => `${quote(name ?? label)},${x},${ys[index]}`),
  );
  const file = new Blob([["line,x,y", ...rows].join("\n") + "\n"], { type: "text/csv" });
  const link = h("a", { href: URL.createObjectURL(file), download: `${options.name.replace(/[^\w-]+/g, "-")}.csv` });
  link.click();
  URL.revokeObjectURL(link.href);
}
