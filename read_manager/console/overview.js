// Health of every process, rates, what is not as it should be, and the way of a message.
import { badge, commands, h, panel, replace, setText } from "./dom.js";
import { bytes, byteRate, exact, number, plural, rate, seconds } from "./format.js";
import { rateHistory } from "./cluster.js";
import { buildChart } from "./chart.js";
import { buildTable } from "./table.js";
import { buildMap } from "./cluster_map.js";
import { topicLink } from "./api.js";

const LISTED = 8;
const STALE_S = 5;

function tile(label, href) {
  const value = h("strong", null, "–");
  const note = h("span", { class: "quiet" });
  const element = h(href ? "a" : "div", { class: "tile", href }, h("span", { class: "label" }, label), value, note);
  return {
    element,
    set(text, title = "", state = "", more = "") {
      setText(value, text);
      setText(note, more);
      element.title = title;
      element.dataset.state = state;
    },
  };
}

export function worstLag(servers) {
  const standbys = servers.filter((server) => server.role === "standby");
  const worst = (name) => standbys.map((server) => server[name]).filter((value) => typeof value === "number").sort((a, b) => b - a)[0] ?? null;
  return { count: standbys.length, inSeconds: worst("replay_lag_s"), inBytes: worst("replay_lag_bytes") };
}

export async function show({ view, signal, followCluster }) {
  const tiles = {
    in: tile("Messages in"), out: tile("Messages out"), topics: tile("Topics", "#/topics"), brokers: tile("Brokers", "#/brokers"),
    under: tile("Under-replicated"), leaderless: tile("Without a leader"), lag: tile("PostgreSQL replay lag"),
  };
  const status = h("p", { class: "status" }, "Waiting for the first figures…");
  const alerts = h("ul", { class: "alerts" });
  const spoken = h("p", { class: "unseen", "aria-live": "assertive" });
  const first = h("section", { class: "panel first", hidden: true }, h("h2", null, "Send a first message"),
    h("p", null, "There is no topic yet. One is made by whoever produces to it, on ", h("a", { href: "#/topics" }, "the page of topics"), ", or like this:"),
    commands(firstCommands()));
  const messages = buildChart({ title: "Messages a second", series: ["in", "out"], format: rate, spanGaps: false, signal });
  const volume = buildChart({ title: "Bytes a second", series: ["in", "out"], format: byteRate, binary: true, spanGaps: false, signal });
  const map = buildMap();
  const processes = buildTable({
    caption: "Processes",
    key: (row) => row.name,
    columns: [
      { name: "name", label: "Process", cell: (row) => row.name, value: (row) => row.name },
      { name: "health", label: "Health", cell: (row) => badge(row.healthy === false ? "bad" : row.healthy ? "ok" : "unknown", row.healthy === false ? "down" : row.healthy ? "healthy" : "unknown"), value: (row) => String(row.healthy) },
      { name: "detail", label: "Detail", cell: (row) => row.detail ?? "" },
    ],
  });
  const busiest = buildTable({
    caption: "Busiest topics",
    key: (row) => row.topic,
    empty: "No topic is written to right now.",
    columns: [
      { name: "topic", label: "Topic", fixed: true, cell: (row) => h("a", { href: topicLink(row.topic) }, row.topic) },
      { name: "rate", label: "In", end: true, cell: (row) => rate(row.messages_in_per_s), title: (row) => exact(row.messages_in_per_s, "messages/s") },
      { name: "messages", label: "Messages", end: true, cell: (row) => number(row.messages), title: (row) => exact(row.messages) },
      { name: "size", label: "Stored", end: true, narrow: true, cell: (row) => bytes(row.stored_bytes), title: (row) => exact(row.stored_bytes, "bytes") },
    ],
  });
  const behind = buildTable({
    caption: "Consumers furthest behind",
    key: (row) => row.consumer_id,
    empty: "No consumer with a name is behind.",
    columns: [
      { name: "name", label: "Consumer", fixed: true, class: "name", cell: (row) => h("a", { href: `#/consumers/${row.consumer_id}` }, row.name) },
      { name: "topic", label: "Topic", fixed: true, class: "name", cell: (row) => h("a", { href: topicLink(row.topic) }, row.topic) },
      { name: "lag", label: "Behind", end: true, cell: (row) => number(row.messages), title: (row) => exact(row.messages, "messages") },
      { name: "members", label: "Members", end: true, narrow: true, cell: (row) => number(row.members) },
    ],
  });
  const faults = h("div");
  const stale = h("p", { class: "failure", hidden: true });

  view.append(
    h("h1", null, "Overview"), status, stale, spoken, alerts, first,
    h("div", { class: "tiles" }, Object.values(tiles).map((each) => each.element)),
    panel("The way of a message", map.element),
    h("div", { class: "two" }, h("section", { class: "panel" }, messages.element), h("section", { class: "panel" }, volume.element)),
    faults,
    h("div", { class: "two" }, h("div", null, panel("Busiest topics", busiest.element), panel("Consumers furthest behind", behind.element)), panel("Processes", processes.element)));

  const drawn = {};
  function redraw(name, shown, draw) {
    const text = JSON.stringify(shown);
    if (text !== drawn[name]) draw();
    drawn[name] = text;
  }

  followCluster((overview) => {
    stale.hidden = !(overview.state_age_s === null || overview.state_age_s > STALE_S);
    setText(stale, overview.state_age_s === null ? "No write manager has answered yet: figures of topics and brokers are not known." : `Figures of topics and brokers are ${seconds(Math.round(overview.state_age_s))} old: no write manager answers.`);
    showTiles(tiles, overview);
    first.hidden = overview.topic_count !== 0;
    const problems = overview.alerts.length;
    status.dataset.state = problems ? (overview.alerts.some((alert) => alert.severity === "critical") ? "bad" : "warn") : "ok";
    setText(status, problems ? plural(problems, "alert") : "All is well.");
    redraw("alerts", overview.alerts, () => replace(alerts, overview.alerts.map(alertItem)));
    // Figures in alerts change each second: they are read aloud when an alert comes or goes, not each time.
    redraw("spoken", overview.alerts.map((alert) => [alert.code, alert.text.replace(/[\d.,]+/g, "")]), () => setText(spoken, overview.alerts.map((alert) => `${alert.severity}: ${alert.text}`).join(". ")));
    redraw("faults", [overview.under_replicated, overview.leaderless], () => replace(faults, partitionFaults(overview)));
    const points = rateHistory();
    messages.set(points.times, [points.messagesIn, points.messagesOut]);
    volume.set(points.times, [points.bytesIn, points.bytesOut]);
    map.set(overview);
    processes.set(overview.processes);
    busiest.set(overview.topics.filter((topic) => topic.messages_in_per_s > 0).slice(0, LISTED));
    behind.set((overview.consumers ?? []).filter((consumer) => consumer.messages > 0).slice(0, LISTED));
  });
}

function showTiles(tiles, overview) {
  const { rates } = overview;
  tiles.in.set(rate(rates.messages_in_per_s), exact(rates.messages_in_per_s, "messages/s"), "", byteRate(rates.bytes_in_per_s));
  tiles.out.set(rate(rates.messages_out_per_s), exact(rates.messages_out_per_s, "messages/s"), "", byteRate(rates.bytes_out_per_s));
  tiles.topics.set(number(overview.topic_count), exact(overview.topic_count), "", plural(overview.partition_count ?? 0, "partition"));
  const up = overview.brokers.filter((broker) => broker.healthy).length;
  tiles.brokers.set(`${up} of ${overview.brokers.length}`, "", up < overview.brokers.length ? "bad" : "", "healthy");
  tiles.under.set(number(overview.under_replicated_count), "", overview.under_replicated_count ? "warn" : "", "partitions");
  tiles.leaderless.set(number(overview.leaderless_count), "", overview.leaderless_count ? "bad" : "", "partitions");
  const lag = worstLag(overview.postgres);
  const text = lag.inSeconds !== null ? seconds(lag.inSeconds) : bytes(lag.inBytes);
  tiles.lag.set(text, exact(lag.inBytes, "bytes"), "", lag.inSeconds !== null && lag.inBytes !== null ? bytes(lag.inBytes) : plural(lag.count, "standby", "standbys"));
}

function alertItem(alert) {
  return h("li", { class: alert.severity === "critical" ? "bad" : "warn", "data-code": alert.code },
    badge(alert.severity === "critical" ? "bad" : "warn", alert.severity), h("strong", null, alert.text),
    alert.action && h("span", null, alert.action));
}

function partitionFaults(overview) {
  const { under_replicated: under, leaderless } = overview;
  if (!under.length && !leaderless.length) return null;
  const link = (each) => h("a", { href: topicLink(each.topic) }, `${each.topic} / ${each.partition_id}`);
  return panel("Partitions to look at",
    leaderless.length > 0 && h("p", null, badge("bad", "no leader"), " ", leaderless.slice(0, 20).map((each) => [link(each), " "]), more(overview.leaderless_count, 20)),
    under.length > 0 && h("p", null, badge("warn", "under-replicated"), " ", under.slice(0, 20).map((each) => [link(each), ` (missing ${each.missing.join(", ")}) `]), more(overview.under_replicated_count, 20)));
}

function more(count, shown) {
  return count > shown && h("span", { class: "quiet" }, `and ${number(count - shown)} more`);
}

export function firstCommands(topic = "orders") {
  const url = location.origin;
  return [
    ["curl", `curl -s ${url}/v1/topics/${topic} -X PUT -H 'Content-Type: application/json' -d '{}'\ncurl -s ${url}/v1/topics/${topic}/messages -H 'Content-Type: application/json' -d '{"messages": [{"value": "hello"}]}'`],
    ["Python", `from myqueue import Producer\n\nwith Producer("${url}", topic="${topic}") as producer:\n    producer.send("hello")`],
  ];
}
