// A picture of the way that a message takes, with the health of everything on it.
import { h, setText, svg } from "./dom.js";
import { byteRate, bytes, rate, seconds } from "./format.js";

const COLUMN = { clients: 4, nginx: 226, managers: 458, stores: 752 };
const BOX = { width: 164, height: 42, gap: 8 };
const MUCH_BEHIND_BYTES = 1 << 20; // less is normal, and would change all the time
const MOST = 8; // boxes of a kind; the rest is counted

function kind(process) {
  return process.healthy === null || process.healthy === undefined ? "unknown" : process.healthy ? "ok" : "bad";
}

function box(x, y, { title, sub, state, href, wide = BOX.width }) {
  const group = svg("g", { class: `node ${state}` },
    svg("title", null, `${title}: ${sub}${state === "bad" ? " (not healthy)" : ""}`),
    svg("rect", { x, y, width: wide, height: BOX.height, rx: 8 }),
    svg("circle", { cx: x + 14, cy: y + 16, r: 4, class: "dot" }),
    svg("text", { x: x + 25, y: y + 20, class: "name" }, title),
    svg("text", { x: x + 12, y: y + 36, class: "sub" }, sub));
  return href ? svg("a", { href }, group) : group;
}

function column(x, top, items) {
  const shown = items.length > MOST ? items.slice(0, MOST - 1) : items;
  const rest = items.length - shown.length;
  const boxes = shown.map((item, at) => ({ item, x, y: top + at * (BOX.height + BOX.gap) }));
  if (rest) boxes.push({ item: { title: `${rest} more`, sub: "see the table", state: items.slice(MOST - 1).some((each) => each.state === "bad") ? "bad" : "ok" }, x, y: top + shown.length * (BOX.height + BOX.gap) });
  return { boxes, height: boxes.length * (BOX.height + BOX.gap) - BOX.gap };
}

function edge(from, to, flow, { both = false } = {}) {
  const x1 = from.x + BOX.width, y1 = from.y + BOX.height / 2, x2 = to.x, y2 = to.y + BOX.height / 2;
  const middle = (x1 + x2) / 2;
  return svg("path", { class: `edge ${flow} ${both ? "both" : ""}`, d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

const isActive = (writer) => !writer.item.sub.includes("standby");

/** Read managers read a standby, the active write manager writes to the primary. */
function metadataEdges(managers, servers, role) {
  const wanted = servers.filter((server) => server.item.role === role);
  return managers.flatMap((from) => wanted.map((to) => edge(from, to, "meta")));
}

function flow(perSecond) {
  if (!perSecond) return "still";
  return perSecond >= 10000 ? "fast" : perSecond >= 100 ? "steady" : "slow";
}

const short = (name) => name.replace("read-manager", "read mgr").replace("write-manager", "write mgr");

/** Drawn again only when something but the rates has changed, so that what moves goes on moving. */
export function buildMap() {
  const element = h("div", { class: "map-frame", tabindex: "0", role: "region", "aria-label": "Cluster map" });
  let drawn = null;
  return {
    element,
    set(overview) {
      const { rates } = overview;
      const shown = JSON.stringify([overview.processes, overview.postgres.map(postgresText), overview.brokers.map((each) => [each.healthy, each.leaders, each.replicas]), flow(rates.messages_in_per_s), flow(rates.messages_out_per_s)]);
      if (shown !== drawn) element.replaceChildren(draw(overview));
      drawn = shown;
      const [inward, outward] = element.querySelectorAll(".flow-text");
      setText(inward, `in ${rate(rates.messages_in_per_s)} · ${byteRate(rates.bytes_in_per_s)}`);
      setText(outward, `out ${rate(rates.messages_out_per_s)} · ${byteRate(rates.bytes_out_per_s)}`);
    },
  };
}

function draw(overview) {
  const { rates, processes } = overview;
  const of = (role) => processes.filter((process) => process.role === role);
  const readers = column(COLUMN.managers, 30, of("read_manager").map((process) => ({ title: short(process.name), sub: process.detail || "reads", state: kind(process) })));
  const writersTop = 30 + readers.height + 34;
  const writers = column(COLUMN.managers, writersTop, of("write_manager").map((process) => ({ title: short(process.name), sub: process.detail || "writes", state: kind(process) })));
  const brokers = column(COLUMN.stores, 30, overview.brokers.map((broker) => ({
    title: `broker ${broker.broker_id}`, sub: `leads ${broker.leaders ?? "–"} of ${broker.replicas ?? "–"}`, state: kind(broker), href: "#/brokers",
  })));
  const postgresTop = 30 + brokers.height + 34;
  const postgres = column(COLUMN.stores, postgresTop, overview.postgres.map((server) => ({
    title: server.name, sub: postgresText(server), state: kind(server), role: server.role,
  })));
  const height = Math.max(writersTop + writers.height, postgresTop + postgres.height) + 12;
  const middle = height / 2 - BOX.height / 2;
  const balancer = of("load_balancer")[0] ?? { healthy: true };
  const clients = { x: COLUMN.clients, y: middle };
  const nginx = { x: COLUMN.nginx, y: middle };
  const inFlow = flow(rates.messages_in_per_s);
  const outFlow = flow(rates.messages_out_per_s);
  const edges = [
    edge(clients, nginx, flow((rates.messages_in_per_s ?? 0) + (rates.messages_out_per_s ?? 0))),
    ...readers.boxes.map((to) => edge(nginx, to, outFlow)),
    ...writers.boxes.map((to) => edge(nginx, to, inFlow)),
    ...readers.boxes.flatMap((from) => brokers.boxes.map((to) => edge(from, to, "still"))),
    ...writers.boxes.filter(isActive).flatMap((from) => brokers.boxes.map((to) => edge(from, to, inFlow))),
    ...metadataEdges(readers.boxes, postgres.boxes, "standby"),
    ...metadataEdges(writers.boxes.filter(isActive), postgres.boxes, "primary"),
  ];
  const heading = (x, y, text) => svg("text", { x, y, class: "heading" }, text);
  return svg("svg", { class: "map", viewBox: `0 0 920 ${height}`, role: "img", "aria-label": summary(overview) },
    svg("g", { class: "edges" }, edges),
    heading(COLUMN.managers, 20, "Read managers"), heading(COLUMN.managers, writersTop - 10, "Write managers"),
    heading(COLUMN.stores, 20, "Brokers: messages"), heading(COLUMN.stores, postgresTop - 10, "PostgreSQL: metadata"),
    box(clients.x, clients.y, { title: "clients", sub: "curl, library, browser", state: "none" }),
    box(nginx.x, nginx.y, { title: "nginx", sub: balancer.detail || "one port", state: kind(balancer) }),
    svg("text", { x: 197, y: middle - 30, class: "flow-text" }),
    svg("text", { x: 197, y: middle - 14, class: "flow-text" }),
    [...readers.boxes, ...writers.boxes, ...brokers.boxes, ...postgres.boxes].map((each) => box(each.x, each.y, each.item)));
}

function postgresText(server) {
  if (!server.healthy && !server.role) return "does not answer";
  if (server.role !== "standby") return server.role ?? "role not known";
  if (server.replay_lag_s >= 1) return `standby, ${seconds(server.replay_lag_s)} behind`;
  if (server.replay_lag_bytes >= MUCH_BEHIND_BYTES) return `standby, ${bytes(server.replay_lag_bytes)} behind`;
  return "standby";
}

function summary(overview) {
  const bad = [...overview.processes.filter((each) => each.healthy === false).map((each) => each.name)];
  return `The way of a message: clients, nginx, managers, brokers and PostgreSQL. ${bad.length ? `Not healthy: ${bad.join(", ")}` : "All are healthy"}.`;
}
