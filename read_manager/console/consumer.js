// One consumer: how far it is behind now and over time, who reads, why it gets nothing, seek and delete.
import { badge, crumbs, h, panel, repeat, replace } from "./dom.js";
import { bytes, exact, number, plural, seconds } from "./format.js";
import { call, get, getOr, topicLink } from "./api.js";
import { failure, notice } from "./dialog.js";
import { confirmByTyping } from "./form.js";
import { buildTable } from "./table.js";
import { buildChart } from "./chart.js";
import { openSeek } from "./seek.js";

const RELOAD_MS = 2000;
const EXPLAIN_EVERY = 3; // reloads
const KEPT_POINTS = 300;
const MOST_LINES = 8;

export async function show({ view, consumer: id, signal, setTitle, followCluster }) {
  const path = `/v1/consumers/${id}`;
  const consumer = await get(path, null, signal);
  const name = consumer.name ?? `consumer ${id}`;
  setTitle(name);
  let lag = null;
  const points = new History();
  const totals = h("p", { class: "facts", role: "status" });
  const explained = h("div", { "aria-live": "polite" });
  const problem = h("div");
  const seek = h("button", { type: "button", disabled: true, onclick: () => openSeek(consumer, lag, reload) }, "Seek…");
  const messages = buildChart({ title: "Behind, in messages", series: [], format: number, signal });
  const age = buildChart({ title: "Behind, in seconds", series: [], format: seconds, signal });
  const table = buildTable({
    caption: `Partitions of ${name}`,
    key: (row) => row.partition_id,
    sort: "partition",
    columns: [
      { name: "partition", label: "Partition", cell: (row) => String(row.partition_id), value: (row) => row.partition_id },
      { name: "cursor", label: "Cursor", end: true, cell: (row) => exact(row.cursor), value: (row) => row.cursor },
      { name: "end", label: "End offset", end: true, narrow: true, cell: (row) => exact(row.end_offset), value: (row) => row.end_offset },
      { name: "messages", label: "Behind", end: true, cell: (row) => number(row.messages), title: (row) => exact(row.messages, "messages"), value: (row) => row.messages },
      { name: "seconds", label: "Oldest unread", end: true, cell: (row) => (row.messages ? seconds(row.seconds) : "–"), value: (row) => row.seconds },
      { name: "bytes", label: "Unread", end: true, narrow: true, cell: (row) => bytes(row.stored_bytes), title: (row) => exact(row.stored_bytes, "bytes"), value: (row) => row.stored_bytes },
      { name: "member", label: "Member", class: "name", cell: memberText, value: (row) => row.member ?? "" },
    ],
  });
  const why = h("div");
  view.append(crumbs(["Consumers", "#/consumers"], [name]),
    h("div", { class: "title-row" }, h("h1", null, name), h("div", { class: "toolbar" }, seek, h("button", { class: "danger", type: "button", onclick: remove }, "Delete…"))),
    h("p", { class: "facts" }, h("span", null, "topic ", h("a", { href: topicLink(consumer.topic) }, consumer.topic)), h("span", null, `id ${id}`), consumer.partition_id !== null && h("span", null, `partition ${consumer.partition_id} only`)),
    totals, explained, problem, table.element, why,
    h("div", { class: "two charts" }, h("section", { class: "panel" }, messages.element), h("section", { class: "panel" }, age.element)));

  function remove() {
    confirmByTyping({
      title: "Delete a consumer",
      explain: `${name} goes with its cursors: under this name, reading starts over. Messages stay.`,
      name: String(name),
      action: "Delete consumer",
      submit: () => call("DELETE", path),
      done: () => {
        notice(`${name} was deleted.`);
        location.hash = "#/consumers";
      },
    });
  }

  function drawCharts() {
    const lines = points.lines();
    messages.set(lines.times, lines.messages, lines.names);
    age.set(lines.times, lines.seconds, lines.names);
  }

  async function reload() {
    try {
      lag = await get(`${path}/lag`, null, signal);
      seek.disabled = false;
      replace(problem);
      const members = new Set(lag.partitions.map((each) => each.member).filter((member) => member !== null));
      replace(totals, h("span", null, "behind ", h("b", { title: exact(lag.messages, "messages") }, plural(lag.messages, "message"))),
        h("span", null, "oldest unread ", h("b", null, lag.messages ? seconds(lag.seconds) : "–")), h("span", null, "unread ", h("b", { title: exact(lag.stored_bytes, "bytes") }, bytes(lag.stored_bytes))),
        h("span", null, h("b", null, plural(members.size, "member"))));
      table.set(lag.partitions);
      points.add(Date.now(), lag.partitions);
      drawCharts();
    } catch (error) {
      if (!signal.aborted) replace(problem, failure(error));
    }
  }

  let drawnExplain = null;
  async function explain() {
    try {
      const answer = await get(`${path}/explain`, null, signal);
      const text = JSON.stringify([answer.summary, answer.partitions.map((each) => [each.partition_id, each.reason, each.text])]);
      if (text === drawnExplain) return;
      drawnExplain = text;
      const { summary } = answer;
      replace(explained, h("p", { class: "explain" }, badge("", summary.reason), " ", h("b", null, summary.text), summary.action && h("span", { class: "action" }, summary.action)));
      replace(why, h("details", { class: "panel" }, h("summary", null, "Why each partition is where it is"),
        h("ul", null, answer.partitions.map((each) => h("li", null, `${each.partition_id}: `, badge("", each.reason), ` ${each.text} ${each.action ?? ""}`)))));
    } catch (error) {
      if (!signal.aborted) replace(explained, failure(error));
    }
  }

  followCluster(() => {});
  const history = await getOr({ consumers: [] }, "/v1/stats/consumers", { consumer_id: id, last: "24h", step: "5m" }, signal).catch(() => ({ consumers: [] }));
  for (const partition of history.consumers) for (const point of partition.history) points.addOne(point.computed_at, partition.partition_id, point);
  let turn = 0;
  await repeat(async () => {
    await reload();
    if (turn % EXPLAIN_EVERY === 0) await explain();
    turn += 1;
  }, RELOAD_MS, signal);
}

function memberText(row) {
  if (row.member === null) return h("span", { class: "quiet" }, "nobody reads it");
  const more = [row.client_id, row.host].filter(Boolean).join(" at ");
  return h("span", { title: row.member }, more || row.member || "one without a name");
}

/** Points of partitions by time: those that jobs have left, and those seen since the page was opened. */
class History {
  #byTime = new Map();
  #partitions = new Map(); // to the highest lag

  addOne(time, partition, { messages, seconds: age }) {
    if (!this.#byTime.has(time)) this.#byTime.set(time, new Map());
    this.#byTime.get(time).set(partition, { messages, age });
    this.#partitions.set(partition, Math.max(messages, this.#partitions.get(partition) ?? 0));
  }

  add(time, partitions) {
    for (const partition of partitions) this.addOne(time, partition.partition_id, partition);
    while (this.#byTime.size > KEPT_POINTS * 2) this.#byTime.delete(this.#byTime.keys().next().value);
  }

  lines() {
    const most = [...this.#partitions].sort(([, a], [, b]) => b - a).slice(0, MOST_LINES).map(([id]) => id).sort((a, b) => a - b);
    const times = [...this.#byTime.keys()].sort((a, b) => a - b);
    const column = (id, figure) => times.map((time) => this.#byTime.get(time).get(id)?.[figure] ?? null);
    return { times, names: most.map((id) => `partition ${id}`), messages: most.map((id) => column(id, "messages")), seconds: most.map((id) => column(id, "age")) };
  }
}
