// One topic: its partitions, messages, live tail, a form to produce, and its settings.
import { badge, crumbs, h, panel, repeat, replace, setText } from "./dom.js";
import { bytes, exact, number, plural, rate, retention } from "./format.js";
import { get, topicLink, topicPath } from "./api.js";
import { failure } from "./dialog.js";
import { buildTable } from "./table.js";
import { deleteTopic, retentionForm } from "./topics.js";
import { showMessages } from "./messages.js";
import { showTail } from "./tail.js";
import { showProduce } from "./produce.js";

const TABS = [["", "Partitions"], ["messages", "Messages"], ["live", "Live"], ["produce", "Produce"], ["settings", "Settings"]];
const RELOAD_MS = 2000;

export async function show(context) {
  const { view, topic, tab = "", signal, followCluster } = context;
  const described = await get(topicPath(topic), null, signal);
  const partitions = Array.from({ length: described.partitions }, (_, at) => at);
  const facts = h("p", { class: "facts" });
  const fact = (label, text) => h("span", null, `${label} `, h("b", null, text));
  const showFacts = (settings) => replace(facts, fact("partitions", number(settings.partitions)), fact("replicas", number(settings.replication)), fact("keeps", retention(settings)), h("span", null, "id ", h("span", { class: "mono" }, settings.topic_id)));
  showFacts(described);
  const here = h("div");
  view.append(crumbs(["Topics", "#/topics"], [topic]), h("h1", null, topic), facts,
    h("nav", { class: "tabs", "aria-label": "Parts of this topic" }, TABS.map(([name, label]) =>
      h("a", { href: topicLink(topic, name), "aria-current": name === tab ? "page" : null, "data-new": name === "produce" ? "" : null }, label))),
    here);
  const part = { ...context, view: here, partitions };
  if (tab === "live") return showTail(part);
  followCluster(tab === "" ? showPartitions(part) : () => {});
  if (tab === "messages") showMessages({ ...part, writePath: (query) => writePath(topic, query) });
  else if (tab === "produce") showProduce(part);
  else if (tab === "settings") showSettings(part, described, showFacts);
}

/** So that a reload, or whoever gets the link, sees the same. */
function writePath(topic, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  history.replaceState(null, "", `${topicLink(topic, "messages")}?${new URLSearchParams(given)}`);
}

function showPartitions({ view, topic, signal }) {
  const summary = h("p", { class: "facts", role: "status" });
  const live = h("b", null, "–");
  const totals = h("span");
  replace(summary, totals, h("span", null, "written ", live));
  const problem = h("div");
  const table = buildTable({
    caption: `Partitions of ${topic}`,
    key: (row) => row.partition_id,
    sort: "partition",
    columns: [
      { name: "partition", label: "Partition", fixed: true, value: (row) => row.partition_id, cell: (row) => h("a", { href: `${topicLink(topic, "messages")}?partition=${row.partition_id}` }, String(row.partition_id)) },
      { name: "leader", label: "Leader", cell: (row) => (row.leader === null ? badge("bad", "none") : `broker ${row.leader}`), value: (row) => row.leader },
      { name: "replicas", label: "Replicas", cell: (row) => replicas(row) },
      { name: "begin", label: "First offset", end: true, narrow: true, cell: (row) => exact(row.beginning_offset), value: (row) => row.beginning_offset },
      { name: "end", label: "End offset", end: true, cell: (row) => exact(row.end_offset), value: (row) => row.end_offset },
      { name: "size", label: "Messages", end: true, cell: (row) => number(row.size), title: (row) => exact(row.size), value: (row) => row.size },
      { name: "bytes", label: "Stored", end: true, cell: (row) => bytes(row.size_bytes), title: (row) => exact(row.size_bytes, "bytes"), value: (row) => row.size_bytes },
      { name: "term", label: "Term", end: true, narrow: true, cell: (row) => number(row.term), value: (row) => row.term },
    ],
  });
  view.append(summary, problem, table.element);
  repeat(async () => {
    try {
      const { partitions } = await get(`/topics/${encodeURIComponent(topic)}/partitions`, null, signal);
      table.set(partitions);
      const sum = (name) => partitions.reduce((total, each) => total + each[name], 0);
      replace(totals, h("b", { title: exact(sum("size")) }, number(sum("size"))), " messages, ", h("b", { title: exact(sum("size_bytes"), "bytes") }, bytes(sum("size_bytes"))));
      replace(problem);
    } catch (error) {
      if (!signal.aborted) replace(problem, failure(error));
    }
  }, RELOAD_MS, signal);
  return (overview) => setText(live, rate(overview.topics.find((each) => each.topic === topic)?.messages_in_per_s ?? null));
}

function replicas(row) {
  const damaged = new Map(row.damaged.map((each) => [each.broker_id, each.reason]));
  return row.replicas.map((broker) => {
    const reason = damaged.get(broker);
    const element = badge(reason ? "bad" : broker === row.leader ? "ok" : "", String(broker));
    element.title = reason ? `broker ${broker}: ${reason}` : `broker ${broker}${broker === row.leader ? ", leader" : ""}`;
    return h("span", null, element, " ");
  });
}

function showSettings({ view, topic }, described, showFacts) {
  view.append(
    panel("Retention", retentionForm(described, showFacts).form),
    panel("Delete", h("p", null, `The topic goes with its ${plural(described.partitions, "partition")}, messages, producers and consumers.`),
      h("button", { class: "danger", type: "button", onclick: () => deleteTopic(topic, () => (location.hash = "#/topics")) }, "Delete topic…")));
}
