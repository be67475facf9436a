// Elements, tables and numbers. Text always goes in as text, never as markup.

/** h("p", {class: "note"}, "some ", h("em", {}, "text")): an HTML element. */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** Like `h`, for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if ((value ?? false) !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(Boolean));
  return element;
}

/** A table whose first column heads its rows. */
export function table(caption, head, rows) {
  const cell = (value, index) => {
    const content = value instanceof Node ? value : String(value);
    return index ? h("td", {}, content) : h("th", { scope: "row" }, content);
  };
  const titles = h("thead", {}, h("tr", {}, head.map((title) => h("th", { scope: "col" }, title))));
  const body = h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))));
  return h("table", {}, h("caption", {}, caption), titles, body);
}

/** A box that scrolls by itself, by keys too. */
export function scrolling(label, content, kind = "") {
  return h("div", { class: `scroll ${kind}`, tabindex: 0, role: "region", "aria-label": label }, content);
}

/** Append a block to a section of the page. */
export function put(section, ...children) {
  document.getElementById(section).append(h("div", { class: "run" }, children));
}

export const absent = (text) => h("p", { class: "absent" }, text);

/** "KQ" is W_K W_Qᵀ. */
export const productName = ([left, right]) => [...symbol("W", left), " ", ...symbol("W", right), h("sup", {}, "⊤")];
export const changeOf = (product) => ["Δ(", ...productName(product), ")"];
export const symbol = (letter, index) => [h("var", {}, letter), h("sub", {}, index)];

/** A number as people write it: 0.3296, 12.4, 3.1e−5; a dash if it is not known. */
export function number(value, digits = 4) {
  if (!Number.isFinite(value)) return { Infinity: "∞", "-Infinity": "−∞" }[value] ?? "–";
  const size = Math.abs(value);
  let text = String(Number(value.toPrecision(digits)));
  if (size && (size < 1e-4 || size >= 1e6)) text = value.toExponential(digits - 1).replace("e+", "e");
  return text.replaceAll("-", "−");
}

/** A number with a fixed count of decimals, for columns. */
export function fixed(value, decimals) {
  return Number.isFinite(value) ? value.toFixed(decimals).replace("-", "−") : number(value);
}

export const signed = (value, decimals = 3) => (value > 0 ? "+" : "") + fixed(value, decimals);
export const percent = (value, digits = 2) => `${number(100 * value, digits)} %`;

/** power(-32) is "10⁻³²". */
export function power(exponent) {
  return "10" + String(exponent).replace(/[-.0-9]/g, (sign) => "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·"["0123456789-.".indexOf(sign)]);
}

/** An initialisation scale by its logarithm: 10⁻³², 2.5·10⁻³. */
export function scaleText(log10Alpha) {
  const exponent = Math.floor(log10Alpha + 1e-9);
  const factor = 10 ** (log10Alpha - exponent);
  return Math.abs(factor - 1) < 1e-6 ? power(exponent) : `${number(factor, 3)}·${power(exponent)}`;
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
export const capitalised = (text) => text[0].toUpperCase() + text.slice(1);
