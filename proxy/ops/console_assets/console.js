// The console: shows the view of the address, and draws it again while it is open.

import { el } from "./elements.js";
import * as views from "./views.js";

const TITLES = {
  now: "Now", partitions: "Partitions", producers: "Producers", producer: "A producer",
  leases: "Leases", refusals: "Refusals", jobs: "Copies and Spark queries", servers: "Servers", browse: "Browse a topic",
};
/** How often each view is drawn again, in ms; the records of a topic stay as they are. */
const AGAIN_MS = {
  now: 2000, partitions: 5000, producers: 5000, producer: 5000, leases: 5000, refusals: 5000,
  jobs: 5000, servers: 2000,
};
const main = document.getElementById("main");
const problem = document.getElementById("problem");

let current = null;  // the AbortController of the view that is open
let timer = 0;

function place() {
  const [view, query = ""] = location.hash.slice(1).split("?", 2);
  const known = Object.hasOwn(TITLES, view) ? view : "now";
  return [known, Object.fromEntries(new URLSearchParams(query))];
}

/** Send a GET to the server's API. Its error has the status, and the problem document. */
async function get(path, query, signal) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const response = await fetch(`v1/${path}?${new URLSearchParams(given)}`, {
    signal, headers: { Accept: "application/json" },
  });
  const answer = await response.json();
  if (response.ok) return answer;
  throw Object.assign(new Error(answer.detail ?? answer.reason ?? response.statusText),
    { status: response.status, problem: answer });
}

function showProblem(text) {
  if (problem.textContent !== text) problem.textContent = text;  // it is read aloud once
  problem.hidden = !text;
}

/** Whether the user fills in a form, or has unfolded a record: then nothing is drawn again. */
function busy() {
  return document.activeElement.matches("main input, main select")
    || main.querySelector("details[open]") !== null;
}

/** Replace the content of the view. The focus stays on the same field or link, if it is there. */
function replace(heading, parts) {
  const key = main.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  main.replaceChildren(heading, ...parts.filter((each) => each != null));
  const same = key && [...main.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key);
  same?.focus({ preventScroll: true });
  return Boolean(same);
}

async function draw(entered) {
  clearTimeout(timer);
  const [view, query] = place();
  if (entered) {
    current?.abort();
    current = new AbortController();
  }
  const { signal } = current;
  const heading = el("h2", { tabindex: "-1" }, TITLES[view]);
  let kept = false;
  try {
    const parts = await views[view](query, (path, asked) => get(path, asked, signal));
    if (signal.aborted) return;
    showProblem("");
    if (entered || !busy()) kept = replace(heading, parts);
  } catch (error) {
    if (signal.aborted) return;
    showProblem(error.status ? error.message : `The server does not answer: ${error.message}`);
    if (entered) replace(heading, []);
  }
  if (entered) {
    document.title = `${TITLES[view]} – pidlease`;
    main.dataset.view = view;
    if (entered === "moved" && !kept) heading.focus();
  }
  const wait = AGAIN_MS[view];
  if (wait) timer = setTimeout(() => (document.hidden ? again(wait) : draw("")), wait);
}

/** Draw later: the page is hidden. */
function again(wait) {
  timer = setTimeout(() => (document.hidden ? again(wait) : draw("")), wait);
}

function enter(how) {
  const [view] = place();
  for (const link of document.querySelectorAll("nav a")) {
    const own = view === "producer" ? "#producers" : `#${view}`;
    if (link.getAttribute("href") === own) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  draw(how);
}

addEventListener("hashchange", () => {
  if (location.hash !== "#main") enter("moved");  // the link that skips the navigation
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.getElementById("server").textContent = location.host;
enter("opened");
