"use strict";

const EVERY = 2000; // milliseconds between two requests
const HISTORY_EVERY = 10000;
const PERIODS = [["d", 86400], ["h", 3600], ["min", 60]];
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
const number = new Intl.NumberFormat("en-US");
const SVG = "http://www.w3.org/2000/svg";
const MEANINGS = [
  ["last", "the stream's last sequence"], ["acked", "all messages up to this sequence are acknowledged"], ["pending", "not delivered to a node yet"],
  ["unacked", "delivered, and not stored yet"], ["lag", "age of the oldest message that is not captured"], ["held", "messages in the archive"],
  ["overlaps", "messages that are stored more than once until the compaction; readers get them once"], ["removed", "messages that retention has removed"],
  ["gaps", "acknowledged sequences that the archive does not hold: deleted in the stream, expired, not to be captured, or missing"],
  ["missing", "acknowledged messages that the stream has and the archive does not"],
];
let history = { archives: {}, kept: 3600, step: 10 };
let asked = -HISTORY_EVERY; // when the history was requested
let shown = { runbook: "", start: "capture run" }; // what the server says besides the status
let meaningsOpen = false;

function made(tag, content, properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...[content].flat());
  return element;
}

const count = value => (value === null || value === undefined ? "?" : number.format(value));

const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

function size(bytes) {
  let unit = 0;
  while (bytes >= 1000 && unit < UNITS.length - 1) { bytes /= 1000; unit += 1; }
  return `${unit ? bytes.toFixed(1) : bytes} ${UNITS[unit]}`;
}

function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  for (const [unit, length] of PERIODS) if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}

const sum = (list, of) => list.reduce((total, one) => total + (of(one) ?? 0), 0);
const clock = at => new Date(1000 * at).toISOString().slice(11, 16);
const instant = at => new Date(1000 * at).toISOString().slice(0, 19).replace("T", " ");
const ago = (at, now) => (at === null || at === undefined ? "never" : `${age(Math.max(0, now / 1000 - at))} ago`);

function soon(at, now) {
  if (at === null || at === undefined) return "not scheduled";
  return at > now / 1000 ? `in ${age(at - now / 1000)}` : "now";
}

function drawn(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function ceiling(value) {
  // The end of an axis: 1, 2 or 5 times a power of ten.
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return Math.max(1, [1, 2, 5, 10].map(step => step * power).find(step => step >= value * 0.999));
}

// Ends of an axis of seconds: they and their halves are whole in the unit that `age` chooses.
const SPANS = [1, 2, 10, 20, 60, 120, 240, 600, 1200, 3600, 7200, 14400, 43200, 86400, 172800, 345600, 1382400];
const span = value => SPANS.find(end => end >= value) ?? 345600 * Math.ceil(value / 345600);

function chart(title, points, format, end_of = ceiling) {
  // A curve over the last hour. Where nothing is known, or nobody looked, it has a gap.
  const { kept, step } = history;
  const end = points.length ? points.at(-1)[0] : Date.now() / 1000;
  const known = points.map(([, value]) => value).filter(value => value !== null);
  const most = end_of(Math.max(0, ...known));
  const runs = [];
  let before = null;
  for (const [at, value] of points) {
    if (value === null) { before = null; continue; }
    if (before === null || at - before > 3 * step) runs.push([]);
    runs.at(-1).push(`${(kept - (end - at)).toFixed(0)},${(100 - 100 * value / most).toFixed(2)}`);
    before = at;
  }
  const drawing = drawn("svg", { viewBox: `0 0 ${kept} 100`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}, the last hour: ${known.length ? `now ${format(known.at(-1))}, ${format(Math.max(...known))} at most` : "nothing is known"}` });
  for (const part of [0, 0.5, 1]) drawing.append(drawn("line", { x1: 0, x2: kept, y1: 100 * part, y2: 100 * part }));
  for (const part of [0.25, 0.5, 0.75]) drawing.append(drawn("line", { x1: kept * part, x2: kept * part, y1: 0, y2: 100 }));
  for (const run of runs) drawing.append(drawn("polyline", { points: (run.length > 1 ? run : [run[0], run[0]]).join(" ") }));
  const ys = made("div", [most, most / 2, 0].map(value => made("span", format(value))), { className: "ys" });
  const xs = made("div", [1, 0.75, 0.5, 0.25, 0].map(part => made("span", clock(end - kept * part))), { className: "xs" });
  return made("figure", [made("figcaption", title), ys, drawing, xs], { className: "chart" });
}

function charts(points) {
  const parts = [
    chart("messages stored per second", points.map(([at, stored]) => [at, stored]), value => number.format(+value.toFixed(value < 10 ? 1 : 0))),
    chart("age of the oldest message not captured", points.map(([at, , lag]) => [at, lag]), value => (value ? age(value) : "0"), span),
  ];
  return made("div", parts, { className: "charts" });
}

function troubles(found) {
  // Each problem with a link to its entry in the runbook, or with the entry's name if the URL is not known.
  return made("ul", found.troubles.map(({ text, entry: name }) => {
    const entry = `#${name}`;
    const link = shown.runbook
      ? made("a", "what to do", { href: shown.runbook + entry, target: "_blank", rel: "noopener noreferrer" })
      : made("span", `see docs/runbook.md${entry}`, { className: "entry" });
    return made("li", [text, " ", link]);
  }), { className: "troubles" });
}

const hint = (text, command) => made("p", command ? [text, " ", made("code", command)] : text, { className: "hint" });

function facts(pairs, large = "") {
  // A value that is not known now is grey: [name, value, true].
  return made("dl", pairs.map(([name, value, stale]) => made("div", [made("dt", name), made("dd", value, { className: `${large} ${stale ? "stale" : ""}` })])));
}

function table(caption, names, rows) {
  const head = made("tr", names.map(name => made("th", name, { scope: "col" })));
  const body = rows.map(row => made("tr", row.map(cell => (cell instanceof Node ? cell : made("td", String(cell))))));
  return made("div", made("table", [made("caption", caption), made("thead", head), made("tbody", body)]), { className: "scroll" });
}

const warned = (text, wrong) => made("td", text, { className: wrong ? "wrong" : "" });

const grey = (text, stale) => made("td", text, { className: stale ? "stale" : "" });

const lagUnknown = one => one.pending + one.unacked > 0 && (one.lag === null || one.lag === undefined);

function streams(list, late) {
  const rows = list.map(one => {
    const position = [count(one.last), count(one.acked), count(one.pending), count(one.unacked), one.pending === null || lagUnknown(one) ? "?" : age(one.lag)];
    const held = [one.held, one.overlaps, one.removed, one.gaps].map(value => grey(count(value), late));
    const missing = late ? grey(count(one.missing), true) : warned(count(one.missing), one.missing > 0);
    return [one.stream, ...position.map(text => grey(text, one.pending === null)), ...held, missing];
  });
  const meanings = made("details", [made("summary", "what the columns mean"), made("dl", MEANINGS.map(([name, said]) => made("div", [made("dt", name), made("dd", said)])))], { open: meaningsOpen });
  meanings.addEventListener("toggle", () => { meaningsOpen = meanings.open; });
  return [table("streams", ["stream", ...MEANINGS.map(([name]) => name)], rows), meanings];
}

function floors(list) {
  return facts(list.map(one => [
    `what the acks of ${one.stream} wait for`,
    one.held_back === null ? "not known" : one.last === 0 ? "nothing is published in this stream yet" : one.held_back || "nothing: every message is acknowledged",
    one.held_back === null,
  ]));
}

function compaction(found, now) {
  // The runs since the leader of the compaction was elected.
  const next = ["next check of the compaction", found.next === null ? "one is running" : soon(found.next, now)];
  const parts = [facts(found.runs.length ? [next] : [["last runs of the compaction", "none since its leader was elected"], next])];
  if (found.runs.length) {
    parts.push(table("last runs of the compaction", ["began", "took", "objects in", "files out", "messages", "result"], found.runs.slice(-5).reverse().map(run => [
      instant(run.began), age(run.seconds), count(run.inputs), count(run.outputs), count(run.rows), warned(run.error || "done", run.error),
    ])));
  }
  return parts;
}

function tables(list, now) {
  return table("Iceberg tables", ["stream", "snapshots", "current", "since", "next expires"], list.map(one => [
    one.stream, count(one.snapshots), one.current, instant(one.made),
    one.expires === null ? "none" : one.expires > now / 1000 ? `in ${age(one.expires - now / 1000)}` : "due",
  ]));
}

function catalogs(list) {
  return table("entries in the catalog", ["stream", "entry", "table", "since", "state"], list.map(one => [
    one.stream, one.entry, one.since ? count(one.number) : "none", one.since ? instant(one.since) : "",
    warned(one.trouble || "current", one.trouble),
  ]));
}

const UNWELL = ["failed", "needs rerun", "not known"];

function bars(runs) {
  // The durations of the last runs, the newest at the right; a failed run is red.
  const drawing = drawn("svg", { viewBox: "0 0 100 16", class: "runs", role: "img" });
  const longest = Math.max(0.001, ...runs.map(one => one.seconds));
  runs.forEach((one, at) => {
    const height = Math.max(2, 16 * one.seconds / longest);
    const bar = drawn("rect", { x: 5 * (at + 20 - runs.length), y: 16 - height, width: 4, height, class: one.error ? "failed" : "" });
    const said = drawn("title", {});
    said.textContent = `run ${one.number}: ${age(one.seconds)}, ${count(one.rows_in)} rows in, ${count(one.rows_out)} out${one.error ? `; failed: ${one.error}` : ""}`;
    bar.append(said);
    drawing.append(bar);
  });
  drawing.setAttribute("aria-label", `durations of the last ${runs.length} runs, ${age(longest)} at most`);
  return drawing;
}

function pipelines(found, now) {
  const lasting = found.ok ? made("p", "all is well", { className: "well" }) : made("p", "something is wrong", { className: "wrong" });
  const parts = [made("div", [made("h2", "pipelines"), lasting], { className: "name" })];
  if (found.troubles.length) parts.push(troubles(found));
  parts.push(facts([["leader of the pipelines", found.leader ?? "none"], ["tables read", ago(found.read_at, now)]]));
  parts.push(table("tables", ["pipeline", "state", "behind", "lag", "next", "last run", "took", "rows in", "rows out", "rows", "size", "runs"], found.pipelines.map(one => {
    const last = one.runs.at(-1);
    const run = last ? [ago(last.ended, now), age(last.seconds), count(last.rows_in), count(last.rows_out)] : ["", "", "", ""];
    return [
      one.name, warned(one.state, UNWELL.includes(one.state)), count(one.behind), one.waiting_since === null ? "" : age(Math.max(0, now / 1000 - one.waiting_since)), found.leader ? soon(one.next, now) : "no leader", ...run,
      count(one.rows), one.bytes === null ? "?" : size(one.bytes), made("td", one.runs.length ? bars(one.runs) : ""),
    ];
  })));
  return made("section", parts, { id: "pipelines" });
}

function nodes(list) {
  if (!list.length) return hint("No node is running. Start one:", shown.start);
  return table("nodes", ["node", "version", "since", "messages", "blocks", "size", "pending", "oldest", "heard"], list.map(one => [
    one.node, one.version, instant(one.since), count(one.stored.messages ?? 0), count(one.stored.blocks ?? 0), size(one.stored.bytes ?? 0),
    count(one.pending), age(one.oldest), warned(`${age(one.age)} ago`, one.late),
  ].map((cell, at) => (one.late && at < 8 ? grey(cell, true) : cell))));
}

function section(archive, now) {
  const { state, leaders, late } = archive;
  const lasting = archive.ok ? made("p", "all is well", { className: "well" }) : made("p", "something is wrong", { className: "wrong" });
  const parts = [made("div", [made("h2", archive.archive), lasting], { className: "name" })];
  if (archive.troubles.length) parts.push(troubles(archive));
  if (archive.nodes.length && archive.nodes.every(node => node.late)) parts.push(hint("No node has reported for a while. Start one:", shown.start));
  const points = history.archives[archive.archive] ?? [];
  const rate = points.at(-1)?.[1] ?? null;
  if (state) {
    const lags = state.streams.map(one => one.lag).filter(lag => lag !== null && lag !== undefined);
    const unknown = state.streams.some(one => one.pending === null || lagUnknown(one));
    parts.push(facts([
      ["messages in the archive", count(sum(state.streams, one => one.held)), late],
      [points.length > 1 ? "stored per second, last minute" : "stored per second, since the nodes started", rate === null ? "not known" : number.format(+rate.toFixed(rate < 10 ? 1 : 0)), rate === null],
      ["oldest message not captured", unknown ? "not known" : lags.length ? age(Math.max(...lags)) : "none", unknown],
      ["not compacted yet", `${count(state.messages)} in ${many(state.blocks, "block")}`, late],
      ["compacted", `${count(state.rows)} in ${many(state.files, "file")}`, late],
    ], "large"));
    parts.push(charts(points), floors(state.streams));
    parts.push(facts([
      ["leader of the sweep", leaders.sweep ?? "none"],
      ["leader of the compaction", leaders.compaction ?? "none"],
      ["last sweep", `${age(archive.age)} ago, by ${state.leader}, took ${age(state.seconds)}`, late],
      ["last merge", state.compacted === null ? "none yet" : `${ago(state.compacted, now)}${state.compactor ? `, by ${state.compactor}` : ""}`, late],
      ["stored", `${size(state.bytes)} of blocks, ${size(state.table_bytes)} of table`, late],
      ["removed by retention", `${count(state.removed_objects)} objects, ${size(state.removed_bytes)}`, late],
    ]));
    parts.push(...streams(state.streams, late));
    if (state.tables?.length) parts.push(tables(state.tables, now));
  } else if (archive.nodes.length) {
    parts.push(hint("Figures appear here after the first sweep, a few seconds after a leader is elected."));
  }
  const compacting = archive.nodes.filter(node => !node.late && node.node === (leaders.compaction ?? node.node));
  const running = compacting.find(node => node.compaction);
  if (running) parts.push(...compaction(running.compaction, now));
  const entries = compacting.flatMap(node => node.catalogs ?? []);
  if (entries.length) parts.push(catalogs(entries));
  parts.push(nodes(archive.nodes));
  return made("section", parts, { id: `archive-${archive.archive}` });
}

function show(archives, derived) {
  const ill = archives.filter(archive => !archive.ok).length;
  const said = ill ? [`${ill} of ${archives.length} archives ${ill === 1 ? "has" : "have"} a problem`] : [];
  if (derived && !derived.ok) said.push("the pipelines have a problem");
  const wrong = said.length > 0;
  const verdict = document.getElementById("verdict");
  verdict.textContent = wrong ? said.join("; ") : "all is well";
  verdict.className = wrong ? "wrong" : "well";
  document.title = wrong ? "✗ capture" : "capture";
  const sections = archives.map(archive => section(archive, Date.now()));
  if (derived) sections.push(pipelines(derived, Date.now()));
  document.getElementById("archives").className = "";
  document.getElementById("archives").replaceChildren(...sections);
  document.getElementById("heard").textContent = `as of ${new Date().toISOString().slice(11, 19)} UTC`;
}

function fail(reason, empty = false) {
  const verdict = document.getElementById("verdict"), archives = document.getElementById("archives");
  verdict.textContent = empty ? "waiting for a node" : `no answer: ${reason}`; // what was shown last stays, grey, with its time
  verdict.className = empty ? "" : "wrong";
  archives.className = "stale";
  document.title = empty ? "capture" : "✗ capture";
  if (!empty) return;
  archives.className = "";
  archives.replaceChildren(made("section", [
    made("h2", "No node has reported yet"), hint("Start a node; its figures appear here within seconds:", shown.start),
    hint(`If one is running: ${reason}`),
  ]));
}

async function ask() {
  try {
    const answer = await fetch("status.json", { signal: AbortSignal.timeout(10000) });
    const said = await answer.json();
    shown = said;
    if (performance.now() - asked >= HISTORY_EVERY) {
      history = await (await fetch("history.json", { signal: AbortSignal.timeout(10000) })).json();
      asked = performance.now();
    }
    if (answer.ok) show(said.archives, said.pipelines); else fail(said.error, said.empty);
  } catch (error) {
    fail(error.message);
  }
  setTimeout(ask, EVERY);
}

ask();
