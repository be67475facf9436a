// Elements, tables and numbers. Text always goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** h("p", {class: "note"}, "some ", h("em", {}, "text")): an HTML element. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Like `h`, for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A table whose first column heads its rows. */
export function table(caption, head, rows) {
  const cell = (value, index) =>
    index ? h("td", {}, value instanceof Node ? value : String(value)) : h("th", { scope: "row" }, String(value));
  return h(
    "table",
    {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))),
  );
}

/** A box that scrolls by itself, by keys too. */
export function scrolling(label, content, kind = "") {
  return h("div", { class: `scroll ${kind}`, tabindex: 0, role: "region", "aria-label": label }, content);
}

/** Append a block to a section of the page. */
export function put(section, ...children) {
  document.getElementById(section).append(h("div", { class: "run" }, children));
}

export function absent(text) {
  return h("p", { class: "absent" }, text);
}

/** A place for each run beside the others, filled with `make(run)`. */
export function sideBySide(section, runs, make) {
  const heading = (run) => (runs.length > 1 ? h("h3", { class: "run-name" }, run.name) : null);
  const parts = runs.map((run) => h("div", { class: "run" }, heading(run), make(run)));
  document.getElementById(section).append(h("div", { class: "runs" }, parts));
}

/** "KQ" is W_K W_Qᵀ. */
export function productName([left, right]) {
  return [...symbol("W", left), " ", ...symbol("W", right), h("sup", {}, "⊤")];
}

export function changeOf(product) {
  return ["Δ(", ...productName(product), ")"];
}

export function symbol(letter, index) {
  return [h("var", {}, letter), h("sub", {}, index)];
}

/** A number as people write it: 0.3296, 12.4, 3.1e−5; a dash if it is not known. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  let text = String(Number(value.toPrecision(digits)));
  if (size && (size < 1e-4 || size >= 1e6)) text = value.toExponential(digits - 1).replace("e+", "e");
  return text.replaceAll("-", "−");
}

/** A number with a fixed count of decimals, for columns. */
export function fixed(value, decimals) {
  return Number.isFinite(value) ? value.toFixed(decimals).replace("-", "−") : number(value);
}

export function signed(value, decimals = 3) {
  return (value > 0 ? "+" : "") + fixed(value, decimals);
}

export function percent(value) {
  return value === null ? "–" : `${number(100 * value, 2)} %`;
}

/** power(-32) is "10⁻³²". */
export function power(exponent) {
  const raised = { "-": "⁻", ".": "·" };
  "⁰¹²³⁴⁵⁶⁷⁸⁹".split("").forEach((digit, index) => (raised[index] = digit));
  return "10" + String(exponent).replace(/[-.0-9]/g, (sign) => raised[sign]);
}

/** An initialisation scale by its logarithm: 10⁻³², 2.5·10⁻³. */
export function scaleText(log10Alpha) {
  const exponent = Math.floor(log10Alpha + 1e-9);
  const factor = 10 ** (log10Alpha - exponent);
  return Math.abs(factor - 1) < 1e-6 ? power(exponent) : `${number(factor, 3)}·${power(exponent)}`;
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

export function capitalised(text) {
  return text[0].toUpperCase() + text.slice(1);
}
