// Places on the page, and products as books set them.

import { h } from "./dom.js";

/** Shades for lines in order: from the first to the last of the palette. */
export function spread(index, count) {
  return count < 2 ? 0 : Math.round((9 * index) / (count - 1));
}

/** W_K W_Qᵀ, the product of full matrices. */
export function fullProduct([left, right]) {
  return [...symbol("W", left), " ", ...symbol("W", right), h("sup", {}, "⊤")];
}

/** Δ(W_K W_Qᵀ), what training has changed in it. */
export function changeOf(product) {
  return ["Δ(", ...fullProduct(product), ")"];
}

export function symbol(letter, index) {
  return [h("var", {}, letter), h("sub", {}, index)];
}

/** A place for each run beside the others: `make(run)` gives what is shown there. */
export function sideBySide(section, runs, make) {
  const holder = h("div", { class: "runs" });
  for (const run of runs) {
    const heading = runs.length > 1 ? h("h3", { class: "run-name" }, run.name) : null;
    holder.append(h("div", { class: "run" }, heading, make(run)));
  }
  document.getElementById(section).append(holder);
}

export function absent(text) {
  return h("p", { class: "absent" }, text);
}
