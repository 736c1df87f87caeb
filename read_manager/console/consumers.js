// All consumers that have a name, the one that is furthest behind first; those without a name on request.
import { commands, h, panel, repeat, replace } from "./dom.js";
import { exact, number, plural } from "./format.js";
import { get, topicLink } from "./api.js";
import { failure } from "./dialog.js";
import { buildTable } from "./table.js";

const RELOAD_MS = 2000;
const NAMELESS_PAGE = 1000;

export async function show({ view, query, signal, followCluster }) {
  let named = [];
  let nameless = [];
  let isMore = false;
  const filter = h("input", { type: "search", placeholder: "Filter by name or topic", "aria-label": "Filter consumers by name or topic", "data-filter": "", value: query.get("filter") ?? "" });
  const all = h("input", { type: "checkbox", id: "nameless" });
  const count = h("span", { class: "quiet", role: "status" });
  const problem = h("div");
  const table = buildTable({
    caption: "Consumers",
    key: (row) => row.consumer_id,
    sort: "lag",
    descending: true,
    empty: "No consumer fits.",
    columns: [
      { name: "name", label: "Consumer", fixed: true, class: "name", cell: (row) => h("a", { href: `#/consumers/${row.consumer_id}` }, row.name ?? `without a name (${row.consumer_id})`), value: (row) => row.name ?? "" },
      { name: "topic", label: "Topic", fixed: true, class: "name", cell: (row) => h("a", { href: topicLink(row.topic) }, row.topic), value: (row) => row.topic },
      { name: "lag", label: "Behind", end: true, cell: (row) => (row.messages === null ? "–" : plural(row.messages, "message")), title: (row) => (row.messages === null ? "only measured on its own page" : exact(row.messages, "messages")), value: (row) => row.messages },
      { name: "members", label: "Members", end: true, cell: (row) => number(row.members), value: (row) => row.members },
      { name: "id", label: "Id", end: true, narrow: true, cell: (row) => String(row.consumer_id), value: (row) => row.consumer_id },
    ],
  });
  const empty = panel("Register a first consumer", h("p", null, "A consumer is a named position in a topic. One is made by whoever reads under a name:"), commands(consumeCommands()));
  const tools = h("div", { class: "toolbar" }, filter, h("label", { class: "check", for: "nameless" }, all, " without a name"), count);
  view.append(h("h1", null, "Consumers"), problem, tools, table.element, empty);

  function draw(more = 0) {
    const wanted = filter.value.trim().toLowerCase();
    const shown = [...named, ...(all.checked ? nameless : [])].filter((row) => (row.name ?? "").toLowerCase().includes(wanted) || row.topic.toLowerCase().includes(wanted));
    table.set(shown);
    count.textContent = plural(shown.length, "consumer") + (more ? `, ${number(more)} more are not listed` : "") + (all.checked && isMore ? ", and more without a name" : "");
    empty.hidden = named.length > 0 || (all.checked && nameless.length > 0);
    table.element.hidden = !empty.hidden;
  }

  async function loadNameless() {
    try {
      const answer = await get("/v1/consumers", { limit: NAMELESS_PAGE }, signal);
      nameless = answer.consumers.filter((each) => each.name === null).map((each) => ({ ...each, messages: null, members: null }));
      isMore = answer.next !== null;
    } catch (error) {
      if (!signal.aborted) replace(problem, failure(error));
    }
    draw();
  }

  filter.addEventListener("input", () => draw());
  all.addEventListener("change", () => (all.checked ? loadNameless() : draw()));
  followCluster(() => {});
  await repeat(async () => {
    try {
      const answer = await get("/v1/lag", null, signal);
      named = answer.consumers;
      replace(problem);
      draw(answer.others + answer.not_measured);
    } catch (error) {
      if (!signal.aborted) replace(problem, failure(error));
    }
  }, RELOAD_MS, signal);
}

export function consumeCommands(topic = "orders", name = "billing") {
  const url = location.origin;
  return [
    ["curl", `curl -s ${url}/consumer/register -H 'Content-Type: application/json' -d '{"topic": "${topic}", "name": "${name}", "from": "earliest"}'`],
    ["Python", `from myqueue import Consumer\n\nwith Consumer("${url}", topic="${topic}", name="${name}", start="earliest") as consumer:\n    for message in consumer:\n        print(message.value)`],
  ];
}
