// Elements and numbers. Text always goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** h("p", {class: "note"}, "some ", h("em", {}, "text")): an HTML element. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
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

/** A number as people write it: 0.3296, 12.4, 3.1e−5; a dash where there is none. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  let text;
  if (value === 0) text = "0";
  else if (size < 1e-4 || size >= 1e6) text = value.toExponential(digits - 1).replace("e+", "e");
  else text = String(Number(value.toPrecision(digits)));
  return text.replaceAll("-", "−");
}

/** A number with a fixed count of decimals, for columns. */
export function fixed(value, decimals) {
  return value === null || value === undefined || !Number.isFinite(value)
    ? number(value)
    : value.toFixed(decimals).replace("-", "−");
}

export function percent(value) {
  return value === null ? "–" : `${number(100 * value, 2)} %`;
}

export function signed(value, decimals = 3) {
  return (value > 0 ? "+" : "") + fixed(value, decimals);
}

/** 10 to a power in plain text: power(-32) is "10⁻³²". */
export function power(exponent) {
  const raised = { "-": "⁻", ".": "·" };
  "⁰¹²³⁴⁵⁶⁷⁸⁹".split("").forEach((digit, index) => (raised[index] = digit));
  return "10" + String(exponent).replace(/[-.0-9]/g, (sign) => raised[sign]);
}

/** An initialisation scale by its logarithm, in plain text: 10⁻³², 2.5·10⁻³. */
export function scaleText(log10Alpha) {
  const exponent = Math.floor(log10Alpha + 1e-9);
  const factor = 10 ** (log10Alpha - exponent);
  return Math.abs(factor - 1) < 1e-6 ? power(exponent) : `${number(factor, 3)}·${power(exponent)}`;
}

export function plural(count, one, many = one + "s") {
  return `${count} ${count === 1 ? one : many}`;
}

/** A table from its head and rows; cells are text or elements, numbers are set in columns. */
export function table(caption, head, rows) {
  const cell = (value, index) =>
    index === 0 ? h("th", { scope: "row" }, String(value)) : h("td", {}, value instanceof Node ? value : String(value));
  return h(
    "table",
    {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, head.map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))),
  );
}
