// Makes elements of the page. Text becomes text nodes only, so that no content is ever markup.

/** Make an element with attributes and children; a string child becomes text. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  made.append(...children.flat().filter((each) => each != null));
  return made;
}

const NUMBERS = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const number = (value) =>
  value == null ? "–" : (Math.abs(value) < 100 ? NUMBERS : WHOLE).format(value);

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${number(value)} ${units[unit]}`;
}

/** A moment in UTC. */
export function moment(ms) {
  if (ms == null || ms < 0 || ms > 8.64e15) return "–";
  const text = new Date(ms).toISOString();
  return el("time", { datetime: text }, text.slice(0, 19).replace("T", " "));
}

/** A time from now, as a duration. */
export function fromNow(ms) {
  if (ms == null || ms < 0) return "–";
  const seconds = Math.round((ms - Date.now()) / 1000);
  return seconds >= 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
}

export function duration(seconds) {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** A link to a view. Its key keeps the focus when the view is drawn again. */
export function viewLink(view, query, ...children) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const href = `#${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
  return el("a", { href, "data-key": `${href} ${children.join("")}` }, ...children);
}

/** A table; columns are [heading, function of a row, class]. The first column names the row. */
export function table(caption, columns, rows) {
  const id = `t-${caption.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const head = columns.map(([text, , kind]) => el("th", { scope: "col", class: kind }, text));
  const body = rows.map((row) =>
    el("tr", {}, columns.map(([, cell, kind], index) =>
      el(index ? "td" : "th", { scope: index ? null : "row", class: kind }, cell(row)))));
  if (!rows.length) body.push(el("tr", {}, el("td", { colspan: columns.length }, "none")));
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-labelledby": id },
    el("table", {}, el("caption", { id }, caption), el("thead", {}, el("tr", {}, head)),
      el("tbody", {}, body)));
}

/** Names and values. */
export function tiles(pairs) {
  return el("dl", { class: "tiles" }, pairs.map(([name, value, kind]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: kind }, value))));
}

/** A field of a form, with its label. */
export function field(text, input) {
  return el("label", { class: input.type === "checkbox" ? "inline" : null }, text, input);
}

export function choice(name, value, options) {
  return el("select", { name, "data-key": name }, options.map(([each, text]) =>
    el("option", { value: each, selected: each === value }, text)));
}

export function input(name, value, more = {}) {
  return el("input", { name, value, "data-key": name, autocomplete: "off", ...more });
}
