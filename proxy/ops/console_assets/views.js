// The views. Each is a function of the query and `get`, and returns its elements.

import { chart, slotLine } from "./charts.js";
import {
  bytes, choice, duration, el, field, fromNow, input, moment, number, table, tiles, viewLink,
} from "./elements.js";

const PAGE = 100;
/** Bytes of records that one page of a topic reads. */
const BROWSE_BYTES = 65536;
const BROWSE_RECORDS = 100;
/** Characters of a value that are shown before the rest is unfolded. */
const SHOWN = 400;

const problemClass = (count) => (count ? "bad" : null);

/** A form that changes the query of a view. */
function search(view, ...fields) {
  return el("form", {
    onsubmit(event) {
      event.preventDefault();
      const given = [...new FormData(event.target)].filter(([, value]) => value.trim() !== "");
      location.hash = `#${view}?${new URLSearchParams(given)}`;
    },
  }, fields, el("button", { type: "submit", "data-key": "submit" }, "Show"));
}

/** A form with what it found, or with why its request is refused. */
async function within(form, work) {
  try {
    return [form, ...await work()];
  } catch (error) {
    if (!error.status || error.status >= 500) throw error;
    return [form, el("p", { class: "bad", role: "alert" }, error.message)];
  }
}

/** Links to the first and the next page. `next` is the cursor; null: there is none. */
function pages(view, query, parameter, next) {
  const first = { ...query };
  delete first[parameter];
  return el("p", { class: "pages" },
    query[parameter] ? viewLink(view, first, "First page") : null,
    next == null ? null : viewLink(view, { ...query, [parameter]: next }, "Next page"));
}

const producerLink = (row) =>
  viewLink("producer", { pid: row.pid, name: row.pid < 0 ? row.name : "" },
    row.pid < 0 ? row.name : String(row.pid));

const browseLink = (row, offset) =>
  viewLink("browse", { topic: row.topic, partition: row.partition, offset }, `${row.topic}-${row.partition}`);

// ---------------------------------------------------------------------- now

/** Keeps the last hour, and the counts of the last look, between two drawings of the view. */
const seen = { samples: [], before: null };

export async function now(query, get) {
  const last = seen.samples.at(-1)?.at_ms ?? 0;
  const [outcomes, history] = await Promise.all([
    get("outcomes", {}), get("history", { after_ms: last }),
  ]);
  const kept = Math.round(3600 / history.sample_seconds);
  seen.samples = [...seen.samples, ...history.samples].slice(-kept);
  if (seen.before?.records > outcomes.records) {
    seen.samples = history.samples;  // the server was started again
    seen.before = null;
  }
  const sample = seen.samples.at(-1);
  const before = seen.before;
  const seconds = before ? (outcomes.at_ms - before.at_ms) / 1000 : 0;
  if (!before || seconds >= 1.5) seen.before = outcomes;
  const rate = (name) => {
    if (seconds > 0) return (outcomes[name] - before[name]) / seconds;
    return sample ? sample[name] / history.sample_seconds : 0;
  };
  const total = (name) => outcomes.outcomes
    .filter((row) => row.outcome === name).reduce((sum, row) => sum + row.batches, 0);
  const perSecond = (name) => (each) => each[name] / history.sample_seconds;
  const [duplicates, gaps, fenced, failed] = ["duplicate", "gap", "fenced", "failed"].map(total);
  const parts = [
    tiles([
      ["State", outcomes.ready ? "ready" : "stopping", outcomes.ready ? "good" : "bad"],
      ["Records a second", number(rate("records"))],
      ["Batches a second", number(rate("batches"))],
      ["Acknowledged", number(outcomes.records)],
      ["Duplicates caught", number(duplicates)],
      ["Gaps", number(gaps), problemClass(gaps)],
      ["Fenced", number(fenced), problemClass(fenced)],
      ["Failed", number(failed), problemClass(failed)],
      ["Event-loop lag", sample ? `${number(sample.lag_seconds * 1000)} ms` : "–"],
      ["Leases", number(outcomes.leases)],
      ["Topics", number(outcomes.topics)],
      ["Partitions", number(outcomes.partitions)],
    ]),
    el("div", { class: "charts" },
      chart("Records a second", seen.samples, [["records", perSecond("records")]], "",
        history.sample_seconds),
      chart("Batches not appended a second", seen.samples, [["duplicates", perSecond("duplicates")],
        ["gaps", perSecond("gaps")], ["fenced", perSecond("fenced")]], "", history.sample_seconds),
      chart("Longest event-loop lag", seen.samples, [["lag", (each) => each.lag_seconds * 1000]],
        " ms", history.sample_seconds),
      chart("Leases", seen.samples, [["leases", (each) => each.leases]], "",
        history.sample_seconds)),
    el("h3", {}, "Topics"),
    table("Batches since the start, by topic", [
      ["Topic", (row) => row.topic],
      ["Records", (row) => number(row.records), "number"],
      ["Size", (row) => bytes(row.bytes), "number"],
      ["Duplicates", (row) => number(row.duplicates), "number"],
      ["Gaps", (row) => number(row.gaps), "number"],
      ["Fenced", (row) => number(row.fenced), "number"],
      ["Failed", (row) => number(row.failed), "number"],
      ["Other refusals", (row) => number(row.refused), "number"],
    ], outcomes.by_topic),
  ];
  if (outcomes.brokers.length) {
    parts.push(el("h3", {}, "Kafka"), table("Brokers of the Kafka cluster", [
      ["Broker", (row) => String(row.broker)],
      ["Address", (row) => row.address],
      ["Connection for short requests", (row) => (row.connected ? "open" : "closed")],
    ], outcomes.brokers));
  }
  return parts;
}

// ---------------------------------------------------------------------- partitions

export async function partitions(query, get) {
  const form = search("partitions",
    field("Part of the topic's name", input("search", query.search)),
    field("State", choice("state", query.state, [["", "any"], ["serving", "serving"],
      ["stopped", "stopped"], ["taken_over", "taken over"], ["awaited", "awaited"]])));
  return within(form, async () => foundPartitions(query, await get("partitions", { ...query, limit: PAGE })));
}

function foundPartitions(query, found) {
  return [
    table("Partitions", [
      ["Partition", (row) => browseLink(row, "")],
      ["State", (row) => el("span", { class: row.state === "serving" ? "good" : "bad" },
        row.state.replace("_", " "), row.reason ? `: ${row.reason}` : ""), "wide"],
      ["Start", (row) => number(row.log_start), "number"],
      ["End", (row) => number(row.log_end), "number"],
      ["Size", (row) => bytes(row.size_bytes), "number"],
      ["Producers", (row) => viewLink("producers", { topic: row.topic, partition: row.partition },
        number(row.producers)), "number"],
      ["In flight", (row) => number(row.in_flight), "number"],
      ["Owner", (row) => row.owner],
      ["Writer", (row) => row.writer || "–"],
    ], found.partitions),
    pages("partitions", query, "after", found.next),
  ];
}

// ---------------------------------------------------------------------- producers

export async function producers(query, get) {
  const form = search("producers",
    field("PID", input("pid", query.pid, { inputmode: "numeric" })),
    field("Name, or Producer-Id", input("name", query.name)),
    field("Topic", input("topic", query.topic)),
    field("Partition", input("partition", query.partition, { inputmode: "numeric" })));
  return within(form, async () => foundProducers(await get("producers", { ...query, limit: PAGE })));
}

function foundProducers(found) {
  return [
    table("Producers", [
      ["PID or id", producerLink],
      ["Name", (row) => row.name || "–"],
      ["Policy", (row) => row.policy || "–"],
      ["Partition", (row) => browseLink(row, "")],
      ["Generation", (row) => number(row.generation), "number"],
      ["Last sequence", (row) => number(row.last_sequence), "number"],
      ["Last offset", (row) => number(row.last_offset), "number"],
      ["Last batch", (row) => fromNow(row.last_write_ms)],
      ["Lease ends", (row) => fromNow(row.expire_ms)],
    ], found.producers),
    el("p", { class: "quiet" }, found.more ? `These are the first ${PAGE}: narrow the search.` : "",
      found.stopped.length ? ` ${found.stopped.length} stopped partitions are left out.` : ""),
  ];
}

const KINDS = {
  leased: "PID leased", granted: "granted to the name", released: "name released",
  ended: "lease ended", duplicate: "duplicate caught", no_pid: "no PID",
};

function eventText(event) {
  const parts = [];
  if (event.topic) parts.push(`on ${event.topic}-${event.partition}`);
  if (event.idempotency_key) parts.push(`Idempotency-Key ${event.idempotency_key}`);
  if (event.generation != null) parts.push(`generation ${event.generation}`);
  if (event.first_sequence != null) {
    parts.push(`sequence ${event.first_sequence} to ${event.last_sequence}`);
  }
  if (event.expected != null) parts.push(`expected ${event.expected}`);
  if (event.known_generation != null) parts.push(`known generation ${event.known_generation}`);
  if (event.kind === "granted") parts.push("lower generations are fenced");
  if (event.former != null) parts.push(`PID ${event.former} is fenced`);
  if (event.reason) parts.push(event.reason);
  return parts.join(", ");
}

const eventKind = (event) => KINDS[event.kind] ?? event.kind.replace("_", " ");

function timeline(events) {
  if (!events.length) return el("p", {}, "Nothing that this server still knows of.");
  return el("ol", { class: "timeline", reversed: true }, events.map((event) =>
    el("li", {}, moment(event.at_ms), " ", el("strong", {
      class: ["fenced", "gap", "unknown", "malformed"].includes(event.kind) ? "bad" : null,
    }, eventKind(event)), " ", eventText(event))));
}

export async function producer(query, get) {
  const path = `producers/${encodeURIComponent(query.pid ?? "")}`;
  const name = query.name ?? "";
  const happened = await get(`${path}/events`, { name, before: query.before, limit: PAGE });
  const history = [
    el("h3", {}, "Timeline"), timeline(happened.events),
    pages("producer", query, "before", happened.next),
  ];
  let found;
  try {
    found = await get(path, { name, after: query.after });
  } catch (error) {
    if (![404, 410].includes(error.status)) throw error;
    return [el("p", {}, error.message), ...history];
  }
  const batches = (row) => el("ol", {}, row.batches.map((batch) => el("li", {},
    `${batch.first_sequence} to ${batch.last_sequence} at offset ${batch.offset}`)));
  return [
    tiles([
      ["PID", found.pid < 0 ? "its own id" : String(found.pid)],
      ["Name or id", found.name || "–"],
      ["Policy", found.policy || "–"],
      ["Leased", moment(found.granted_ms)],
      ["Lease ends", fromNow(found.ends_ms)],
      ["Fenced below generation", found.replaced ? "all: the name has another PID now"
        : found.fence == null ? "no fence" : String(found.fence), found.replaced ? "bad" : null],
      ["Former PID", found.former == null ? "–" : String(found.former)],
    ]),
    el("h3", {}, "Partitions"),
    table("State on each partition", [
      ["Partition", (row) => browseLink(row, row.last_offset)],
      ["Generation", (row) => number(row.generation), "number"],
      ["Last sequence", (row) => number(row.last_sequence), "number"],
      ["Last offset", (row) => number(row.last_offset), "number"],
      ["Last batch", (row) => fromNow(row.last_write_ms)],
      ["In flight", (row) => (row.in_flight ? "yes" : "no")],
      ["Last five batches: sequence numbers, offset", batches],
    ], found.partitions),
    pages("producer", query, "after", found.next),
    ...history,
  ];
}

// ---------------------------------------------------------------------- leases

export async function leases(query, get) {
  const found = await get("leases", { ...query, limit: PAGE });
  const granted = Object.entries(found.granted).map(([policy, count]) => `${number(count)} ${policy}`);
  const refused = Object.values(found.refused).reduce((sum, count) => sum + count, 0);
  const share = (100 * found.used) / found.capacity;
  return [
    tiles([
      ["Lease table", `${number(found.used)} of ${number(found.capacity)}`, share > 80 ? "bad" : null],
      ["Used", `${number(share)} %`, share > 80 ? "bad" : null],
      ["Lease length", `${number(found.lease_seconds / 3600)} h`],
      ["Granted", granted.join(", ") || "0"],
      ["Refused", number(refused), problemClass(refused)],
      ["Ended", number(found.ended)],
      ["Names", number(found.names)],
      ["PIDs left of the block", number(found.block_left)],
      ["Failed blocks", number(found.block_failures), problemClass(found.block_failures)],
    ]),
    found.block_error ? el("p", { class: "bad" }, `Next block: ${found.block_error}`) : null,
    search("leases",
      field("Part of the name", input("search", query.search)),
      field("Only leases with a name",
        input("named", "true", { type: "checkbox", checked: query.named === "true" }))),
    table("Leases, the next to end first", [
      ["PID or id", producerLink],
      ["Name", (row) => row.name || "–"],
      ["Policy", (row) => row.policy || "–"],
      ["Leased", (row) => moment(row.granted_ms)],
      ["Ends", (row) => fromNow(row.ends_ms)],
      ["Partitions", (row) => number(row.partitions), "number"],
    ], found.leases),
    found.next != null && !found.leases.length
      ? el("p", {}, "None in this part of the table: the next page continues the search.") : null,
    pages("leases", query, "after", found.next),
  ];
}

// ---------------------------------------------------------------------- refusals

const runbook = (row) => (row.runbook.startsWith("https://")
  ? el("a", { href: row.runbook, target: "_blank", rel: "noopener noreferrer" }, "Runbook") : "");

export async function refusals(query, get) {
  const found = await get("refusals", { ...query, limit: PAGE });
  return [
    query.kind || query.topic ? el("p", {}, `Only: ${[query.kind, query.topic].filter(Boolean).join(", ")}. `,
      viewLink("refusals", {}, "Show all")) : null,
    table("The last thousand, by kind", [
      ["Kind", (row) => viewLink("refusals", { ...query, before: "", kind: row.kind },
        row.kind.replace("_", " "))],
      ["Count", (row) => number(row.count), "number"],
      ["Last", (row) => fromNow(row.last_ms)],
      ["What to do", (row) => [row.action, " ", runbook(row)], "wide"],
    ], found.groups),
    el("h3", {}, "Refusals"),
    table("Refused batches and leases, the newest first", [
      ["Time (UTC)", (row) => moment(row.at_ms)],
      ["Kind", (row) => el("span", { class: "bad" }, eventKind(row))],
      ["PID or id", (row) => (row.pid > 0 || row.name ? producerLink(row) : "–")],
      ["Name", (row) => row.name || "–"],
      ["Details", eventText, "wide"],
    ], found.refusals),
    pages("refusals", query, "before", found.next),
  ];
}

// ---------------------------------------------------------------------- jobs

const JOB_KINDS = { copy: "Copy", spark: "Spark query" };
const jobClass = (state) => (["stalled", "silent", "failed"].includes(state) ? "bad"
  : state === "running" ? "good" : null);
const processState = (row) => (row.silent ? "silent" : row.state);
const seconds = (value) => duration(Math.round(value));

export async function jobs(query, get) {
  const found = (await get("jobs", {})).jobs;
  if (!found.length) {
    return [el("p", {}, "No copy and no Spark query has reported to this server since it started. "
      + "They report to the server of their setting leases.")];
  }
  const named = (row) => `${JOB_KINDS[row.kind]} ${row.job}`;
  return [
    table("Copies and Spark queries, the last to report first", [
      ["Job", named],
      ["State", (row) => el("span", { class: jobClass(row.state) }, row.state)],
      ["Records a second", (row) => number(row.rate), "number"],
      ["Records", (row) => number(row.records), "number"],
      ["Duplicates caught", (row) => number(row.duplicates), "number"],
      ["Lag", (row) => number(row.lag), "number"],
      ["Lost time", (row) => (row.lost_seconds ? seconds(row.lost_seconds) : "none"), "number"],
      ["First report (UTC)", (row) => moment(row.first_ms)],
    ], found),
    el("p", { class: "quiet" }, "Lost time: there was a lag, and no record was acknowledged. "
      + "Silent: no report for three times as long as usual, so it may have crashed."),
    ...found.flatMap((job) => [
      el("h3", {}, named(job)),
      table(`Processes of ${named(job)}`, [
        ["Process", (row) => row.process],
        ["State", (row) => el("span", { class: jobClass(processState(row)) }, processState(row),
          row.reason ? `: ${row.reason}` : ""), "wide"],
        ["Last report", (row) => fromNow(row.reported_ms)],
        ["Started (UTC)", (row) => moment(row.started_ms)],
        ["From", (row) => row.source, "wide"],
        ["Records", (row) => number(row.records), "number"],
        ["Partitions", (row) => number(row.partitions), "number"],
        ["Largest lags", (row) => (row.lagging.length ? el("ul", {}, row.lagging.slice(0, 5).map((each) =>
          el("li", {}, `${each.topic}-${each.partition}: ${number(each.lag)} from offset ${each.offset}`)))
          : "none")],
      ], job.processes),
    ]),
  ];
}

// ---------------------------------------------------------------------- servers

const sharingState = (row) => (row.silent ? "does not answer"
  : row.returning ? "answers again, gets slots soon"
  : row.draining ? "hands its slots over"
  : [row.decides && "divides the slots", row.registrar && "writes the coordinator's rows"]
    .filter(Boolean).join(", ") || "serves");

export async function servers(query, get) {
  const found = await get("servers", {});
  if (!found.shared) {
    return [el("p", {}, "This server shares no Kafka cluster with others: it runs without --shared.")];
  }
  const owners = found.slot_owners;
  const known = new Set(found.servers.map((row) => row.node_id));
  const live = owners.map((owner) => (known.has(owner) ? owner : 0));
  const without = live.filter((owner) => owner === 0).length;
  return [
    tiles([
      ["Servers", number(found.servers.length)],
      ["Slots", number(owners.length)],
      ["Slots without owner", number(without), problemClass(without)],
      ["Partitions without owner", number(found.partitions_without_owner),
        problemClass(found.partitions_without_owner)],
    ]),
    el("h3", {}, "Servers"),
    table("Active servers that share the Kafka cluster", [
      ["Server", (row) => `${row.server}${row.responds ? " (this one)" : ""}`],
      ["Node id", (row) => String(row.node_id)],
      ["Kafka listener", (row) => row.kafka],
      ["HTTP listener", (row) => row.http],
      ["Slots", (row) => number(row.slots), "number"],
      ["Partitions", (row) => number(row.partitions), "number"],
      ["State", sharingState],
    ], found.servers),
    el("h3", {}, "Slots"),
    ...found.servers.map((row) => slotLine(row.server, live, row.node_id, "owned")),
    without ? slotLine("No server", live, 0, "unowned") : null,
    el("p", { class: "quiet" }, "A partition belongs to a slot, and its slot's owner validates its "
      + "batches. ", viewLink("partitions", {}, "Partitions"), " shows the owner of each."),
  ];
}

// ---------------------------------------------------------------------- browse

const inBytes = (content) => (typeof content === "string" ? new TextEncoder().encode(content)
  : Uint8Array.from(atob(content.base64), (each) => each.charCodeAt(0)));

function inHex(content) {
  return [...inBytes(content)].map((each) => each.toString(16).padStart(2, "0")).join(" ");
}

function decoded(content, format) {
  if (content == null) return "null";
  if (format === "hex") return inHex(content);
  if (typeof content !== "string") return `not UTF-8, in hex: ${inHex(content)}`;
  if (format === "json") {
    try {
      return JSON.stringify(JSON.parse(content), null, 2);
    } catch {
      return content;
    }
  }
  return content;
}

function shown(content, format) {
  const text = decoded(content, format);
  if (text.length <= SHOWN) return el("pre", {}, text);
  return el("details", {},
    el("summary", {}, `${text.slice(0, 80)}… (${number(text.length)} characters)`),
    el("pre", {}, text));
}

const headers = (row, format) => (row.headers.length
  ? el("ul", {}, row.headers.map((each) => el("li", {}, `${each.key}: ${decoded(each.value, format)}`)))
  : "–");

export async function browse(query, get) {
  const format = query.format ?? "text";
  const form = search("browse",
    field("Topic", input("topic", query.topic, { required: true })),
    field("Partition", input("partition", query.partition ?? "0", { inputmode: "numeric" })),
    field("From offset", input("offset", query.offset, { inputmode: "numeric" })),
    field("Or from a time (UTC)", input("time", query.time, { type: "datetime-local", step: "1" })),
    field("Show as", choice("format", format, [["text", "text"], ["json", "JSON"], ["hex", "hex"]])));
  if (!query.topic) return [form];
  const place = `topics/${encodeURIComponent(query.topic)}/partitions/`
    + encodeURIComponent(query.partition ?? "0");
  let offset = query.offset;
  if (query.time && !offset) {
    const at = await get(`${place}/offset`, { timestamp_ms: Date.parse(`${query.time}Z`) });
    if (at.offset == null) return [form, el("p", {}, "No record has this time or a later one.")];
    ({ offset } = at);
  }
  let found;
  try {
    found = await get(`${place}/records`, { offset, max_bytes: BROWSE_BYTES });
  } catch (error) {
    if (!error.status || error.status >= 500) throw error;
    const { log_start: start, next_offset: next } = error.problem ?? {};
    const further = next ?? start;
    return [form, el("p", { class: "bad" }, error.message), further == null ? null : el("p", {},
      viewLink("browse", { ...query, time: "", offset: further }, `Continue at offset ${further}`))];
  }
  const rows = found.records.slice(0, BROWSE_RECORDS);
  const next = rows.length < found.records.length ? rows.at(-1).offset + 1 : found.next_offset;
  return [
    form,
    el("p", { class: "quiet" }, `The log has offsets ${number(found.log_start)} to `
      + `${number(found.log_end)} (exclusive).`),
    table(`Records of ${query.topic}-${query.partition ?? "0"}`, [
      ["Offset", (row) => String(row.offset), "number"],
      ["Time (UTC)", (row) => moment(row.timestamp_ms)],
      ["Key", (row) => shown(row.key, format)],
      ["Value", (row) => shown(row.value, format), "wide"],
      ["Headers", (row) => headers(row, format)],
    ], rows),
    el("p", { class: "pages" },
      viewLink("browse", { ...query, time: "", offset: found.log_start }, "First page"),
      next < found.log_end
        ? viewLink("browse", { ...query, time: "", offset: next }, "Next page") : null),
  ];
}
