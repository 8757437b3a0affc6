// Small charts in SVG.

import { el, number } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 360;
const HEIGHT = 80;

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/**
 * A chart of the last hour.
 *
 * `series` are [name, function of a sample]; `unit` comes after each number. The newest sample is at
 * the right; the whole width is one hour, however few samples there are.
 */
export function chart(title, samples, series, unit, sampleSeconds) {
  const slots = Math.max(2, Math.round(3600 / sampleSeconds));
  const shown = samples.slice(-slots);
  const values = series.map(([, value]) => shown.map(value));
  const top = Math.max(0, ...values.flat());
  const x = (index) => WIDTH - ((shown.length - 1 - index) * WIDTH) / (slots - 1);
  const y = (value) => HEIGHT - 2 - (top ? (value / top) * (HEIGHT - 6) : 0);
  const lines = values.map((each, at) =>
    shape("polyline", {
      class: `series-${at}`,
      points: each.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
    }));
  const said = series.map(([name], at) => {
    const last = values[at].at(-1);
    return `${name}: now ${number(last)}${unit}, at most ${number(Math.max(0, ...values[at]))}${unit}`;
  });
  const key = series.map(([name], at) =>
    el("span", { class: `key-${at}` },
      `${at ? ", " : ""}${series.length > 1 ? name : "now"} ${number(values[at].at(-1))}${unit}`));
  return el("figure", {},
    el("figcaption", {}, `${title}: `, key, el("span", {}, ` (at most ${number(top)}${unit})`)),
    shape("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title} of the last hour. ${said.join("; ")}`,
    }, shape("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), ...lines));
}

/** The slots of one owner among all, as marks on a line from slot 0 to the last. */
export function slotLine(title, owners, owner, kind) {
  const runs = [];
  owners.forEach((each, slot) => {
    if (each !== owner) return;
    const last = runs.at(-1);
    if (last && last[0] + last[1] === slot) last[1] += 1;
    else runs.push([slot, 1]);
  });
  const marks = runs.map(([slot, length]) => `M${slot} 0h${length}v1h-${length}z`).join("");
  const count = runs.reduce((sum, [, length]) => sum + length, 0);
  return el("figure", { class: "slots" },
    el("figcaption", {}, `${title}: ${number(count)} slots`),
    shape("svg", {
      viewBox: `0 0 ${owners.length} 1`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${title} has ${count} of ${owners.length} slots, in ${runs.length} parts`,
    }, shape("path", { class: kind, d: marks })));
}
