"use strict";

const EVERY = 2000; // milliseconds between two requests
const REMEMBERED = 150; // rates that the line shows
const PERIODS = [["d", 86400], ["h", 3600], ["min", 60]];
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];
const number = new Intl.NumberFormat("en-US");
const rates = new Map(); // by archive: { at, counts: what each node had stored, line: messages a second }

function made(tag, content, properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...[content].flat());
  return element;
}

const count = value => (value === null || value === undefined ? "?" : number.format(value));

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

function rate(archive, now) {
  // What the nodes have stored since the last question, a second. A node that is new, or began anew, adds nothing yet.
  const counts = new Map(archive.nodes.map(node => [`${node.node} ${node.since}`, node.stored.messages ?? 0]));
  const known = rates.get(archive.archive) ?? { at: now, counts, line: [] };
  if (now > known.at) {
    const stored = sum([...counts], ([name, value]) => Math.max(0, value - (known.counts.get(name) ?? value)));
    known.line = [...known.line, stored / ((now - known.at) / 1000)].slice(-REMEMBERED);
    Object.assign(known, { at: now, counts });
  }
  rates.set(archive.archive, known);
  return known.line;
}

function line(values) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  const most = Math.max(1, ...values);
  const points = values.map((value, at) => `${at + REMEMBERED - values.length},${(42 - 40 * value / most).toFixed(2)}`);
  const path = document.createElementNS(space, "polyline");
  path.setAttribute("points", points.join(" "));
  drawing.setAttribute("viewBox", `0 0 ${REMEMBERED - 1} 44`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("class", "rate");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", `messages stored per second, ${number.format(Math.round(most))} at most`);
  drawing.append(path);
  return drawing;
}

function facts(pairs, large = "") {
  return made("dl", pairs.map(([name, value]) => made("div", [made("dt", name), made("dd", value, { className: large })])));
}

function table(caption, names, rows) {
  const head = made("tr", names.map(name => made("th", name, { scope: "col" })));
  const body = rows.map(row => made("tr", row.map(cell => (cell instanceof Node ? cell : made("td", String(cell))))));
  return made("div", made("table", [made("caption", caption), made("thead", head), made("tbody", body)]), { className: "scroll" });
}

const warned = (text, wrong) => made("td", text, { className: wrong ? "wrong" : "" });

function streams(list) {
  return table("streams", ["stream", "last", "acked", "pending", "unacked", "lag", "held", "overlaps", "removed", "gaps", "missing"], list.map(one => [
    one.stream, count(one.last), count(one.acked), count(one.pending), count(one.unacked), age(one.lag), count(one.held),
    count(one.overlaps), count(one.removed), count(one.gaps), warned(count(one.missing), one.missing > 0),
  ]));
}

function tables(list, now) {
  return table("Iceberg tables", ["stream", "snapshots", "current", "since", "next expires"], list.map(one => [
    one.stream, count(one.snapshots), one.current, new Date(1000 * one.made).toISOString().slice(0, 19).replace("T", " "),
    one.expires === null ? "none" : one.expires > now / 1000 ? `in ${age(one.expires - now / 1000)}` : "due",
  ]));
}

function catalogs(list) {
  return table("entries in the catalog", ["stream", "entry", "table", "since", "state"], list.map(one => [
    one.stream, one.entry, one.since ? count(one.number) : "none", one.since ? new Date(1000 * one.since).toISOString().slice(0, 19).replace("T", " ") : "",
    warned(one.trouble || "current", one.trouble),
  ]));
}

const UNWELL = ["failed", "needs rerun", "not known"];

function bars(runs) {
  // The durations of the last runs, the newest at the right; a failed run is red.
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  const longest = Math.max(0.001, ...runs.map(one => one.seconds));
  runs.forEach((one, at) => {
    const bar = document.createElementNS(space, "rect");
    const height = Math.max(2, 16 * (one.seconds) / longest);
    for (const [name, value] of [["x", 5 * (at + 20 - runs.length)], ["y", 16 - height], ["width", 4], ["height", height]]) bar.setAttribute(name, value);
    bar.setAttribute("class", one.error ? "failed" : "");
    const said = document.createElementNS(space, "title");
    said.textContent = `run ${one.number}: ${age(one.seconds)}, ${count(one.rows_in)} rows in, ${count(one.rows_out)} out${one.error ? `; failed: ${one.error}` : ""}`;
    bar.append(said);
    drawing.append(bar);
  });
  drawing.setAttribute("viewBox", "0 0 100 16");
  drawing.setAttribute("class", "runs");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", `durations of the last ${runs.length} runs, ${age(longest)} at most`);
  return drawing;
}

function pipelines(found, now) {
  const ago = at => (at === null ? "never" : `${age(Math.max(0, now / 1000 - at))} ago`);
  const lasting = found.ok ? made("p", "all is well", { className: "well" }) : made("p", "something is wrong", { className: "wrong" });
  const parts = [made("div", [made("h2", "pipelines"), lasting], { className: "name" })];
  if (found.troubles.length) parts.push(made("ul", found.troubles.map(one => made("li", one)), { className: "troubles" }));
  parts.push(facts([["leader of the pipelines", found.leader ?? "none"], ["tables read", ago(found.read_at)]]));
  parts.push(table("tables", ["pipeline", "state", "behind", "lag", "last run", "took", "rows in", "rows out", "rows", "size", "runs"], found.pipelines.map(one => {
    const last = one.runs.at(-1);
    const run = last ? [ago(last.ended), age(last.seconds), count(last.rows_in), count(last.rows_out)] : ["", "", "", ""];
    return [
      one.name, warned(one.state, UNWELL.includes(one.state)), count(one.behind), one.waiting_since === null ? "" : age(Math.max(0, now / 1000 - one.waiting_since)), ...run,
      count(one.rows), one.bytes === null ? "?" : size(one.bytes), made("td", one.runs.length ? bars(one.runs) : ""),
    ];
  })));
  return made("section", parts, { id: "pipelines" });
}

function nodes(list) {
  return table("nodes", ["node", "version", "since", "messages", "blocks", "size", "pending", "oldest", "heard"], list.map(one => [
    one.node, one.version, new Date(1000 * one.since).toISOString().slice(0, 19).replace("T", " "), count(one.stored.messages ?? 0),
    count(one.stored.blocks ?? 0), size(one.stored.bytes ?? 0), count(one.pending), age(one.oldest), warned(`${age(one.age)} ago`, one.late),
  ]));
}

function section(archive, now) {
  const { state, leaders } = archive;
  const lasting = archive.ok ? made("p", "all is well", { className: "well" }) : made("p", "something is wrong", { className: "wrong" });
  const parts = [made("div", [made("h2", archive.archive), lasting], { className: "name" })];
  if (archive.troubles.length) parts.push(made("ul", archive.troubles.map(one => made("li", one)), { className: "troubles" }));
  const values = rate(archive, now);
  if (state) {
    const lags = state.streams.map(one => one.lag).filter(lag => lag !== null && lag !== undefined);
    parts.push(facts([
      ["messages in the archive", count(sum(state.streams, one => one.held))],
      ["stored per second", values.length ? count(Math.round(values.at(-1))) : "…"],
      ["oldest message not captured", state.streams.some(one => one.pending === null) ? "not known" : lags.length ? age(Math.max(...lags)) : "none"],
      ["not compacted yet", `${count(state.messages)} in ${count(state.blocks)} blocks`],
      ["compacted", `${count(state.rows)} in ${count(state.files)} files`],
    ], "large"));
    parts.push(line(values));
    parts.push(facts([
      ["leader of the sweep", leaders.sweep ?? "none"],
      ["leader of the compaction", leaders.compaction ?? "none"],
      ["last sweep", `${age(archive.age)} ago, by ${state.leader}, took ${age(state.seconds)}`],
      ["on disk", `${size(state.bytes)} of blocks, ${size(state.table_bytes)} of table`],
      ["removed by retention", `${count(state.removed_objects)} objects, ${size(state.removed_bytes)}`],
    ]));
    parts.push(streams(state.streams));
    if (state.tables?.length) parts.push(tables(state.tables, now));
  }
  const compacting = archive.nodes.filter(node => !node.late && node.node === (leaders.compaction ?? node.node));
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
  document.getElementById("archives").replaceChildren(...sections);
  document.getElementById("heard").textContent = `as of ${new Date().toISOString().slice(11, 19)} UTC`;
}

function fail(reason) {
  const verdict = document.getElementById("verdict");
  verdict.textContent = `no answer: ${reason}`; // what was shown last stays, with its time
  verdict.className = "wrong";
  document.title = "✗ capture";
}

async function ask() {
  try {
    const answer = await fetch("status.json", { signal: AbortSignal.timeout(10000) });
    const said = await answer.json();
    if (answer.ok) show(said.archives, said.pipelines); else fail(said.error);
  } catch (error) {
    fail(error.message);
  }
  setTimeout(ask, EVERY);
}

ask();
