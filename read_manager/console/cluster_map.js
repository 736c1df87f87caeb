// A picture of the way that a message takes, with the health of everything on it.
import { h, setText, svg } from "./dom.js";
import { byteRate, bytes, rate, seconds } from "./format.js";

const BOX = { width: 164, height: 42, gap: 8 };
const WIDE = { width: 920, clients: 4, nginx: 226, managers: 458, stores: 752 };
const NARROW = { width: 344, columns: 2, between: 34 };
const HEADING = 20;
const MUCH_BEHIND_BYTES = 1 << 20; // less is normal, and would change all the time
const MOST = 8; // boxes of a kind; the rest is counted

const narrow = matchMedia("(max-width: 720px)");
const short = (name) => name.replace("read-manager", "read mgr").replace("write-manager", "write mgr");

function stateOf(process) {
  return process.healthy === null || process.healthy === undefined ? "unknown" : process.healthy ? "ok" : "bad";
}

function flow(perSecond) {
  if (!perSecond) return "still";
  return perSecond >= 10000 ? "fast" : perSecond >= 100 ? "steady" : "slow";
}

/** Drawn again only when something but the rates has changed, so that what moves goes on moving. */
export function buildMap() {
  const element = h("div", { class: "map-frame", tabindex: "0", role: "region", "aria-label": "Cluster map" });
  let drawn = null;
  return {
    element,
    set(overview) {
      const { rates } = overview;
      const groups = groupsOf(overview);
      const flows = { in: flow(rates.messages_in_per_s), out: flow(rates.messages_out_per_s) };
      flows.all = flow((rates.messages_in_per_s ?? 0) + (rates.messages_out_per_s ?? 0));
      const shown = JSON.stringify([groups, flows, narrow.matches]);
      if (shown !== drawn) element.replaceChildren(narrow.matches ? drawNarrow(groups, flows) : drawWide(groups, flows));
      drawn = shown;
      const [inward, outward] = element.querySelectorAll(".flow-text");
      setText(inward, `in ${rate(rates.messages_in_per_s)} · ${byteRate(rates.bytes_in_per_s)}`);
      setText(outward, `out ${rate(rates.messages_out_per_s)} · ${byteRate(rates.bytes_out_per_s)}`);
    },
  };
}

/** What is drawn, as plain values: boxes with a title, a second line and a state. */
function groupsOf(overview) {
  const of = (role, text) => overview.processes.filter((process) => process.role === role)
    .map((process) => ({ title: short(process.name), sub: process.detail || text, state: stateOf(process) }));
  const [balancer] = of("load_balancer", "one port");
  return {
    clients: [{ title: "clients", sub: "curl, library, browser", state: "none" }],
    nginx: [balancer ?? { title: "nginx", sub: "one port", state: "unknown" }],
    readers: bounded(of("read_manager", "reads")),
    writers: bounded(of("write_manager", "writes")),
    brokers: bounded(overview.brokers.map((broker) => ({ title: `broker ${broker.broker_id}`, sub: `leads ${broker.leaders ?? "–"} of ${broker.replicas ?? "–"}`, state: stateOf(broker) }))),
    postgres: bounded(overview.postgres.map((server) => ({ title: server.name, sub: postgresText(server), state: stateOf(server), role: server.role }))),
  };
}

function bounded(items) {
  if (items.length <= MOST) return items;
  const rest = items.slice(MOST - 1);
  return [...items.slice(0, MOST - 1), { title: `${rest.length} more`, sub: "see the table", state: rest.some((each) => each.state === "bad") ? "bad" : "ok" }];
}

function postgresText(server) {
  if (!server.role) return server.detail || "does not answer";
  if (server.role !== "standby") return server.role;
  if (server.replay_lag_s >= 1) return `standby, ${seconds(Math.round(server.replay_lag_s))} behind`;
  if (server.replay_lag_bytes >= MUCH_BEHIND_BYTES) return `standby, ${bytes(server.replay_lag_bytes)} behind`;
  return "standby";
}

// ---- drawing ----

function box({ x, y, item }) {
  return svg("g", { class: `node ${item.state}` },
    svg("title", null, `${item.title}: ${item.sub}${item.state === "bad" ? " (not healthy)" : ""}`),
    svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 8 }),
    svg("circle", { cx: x + 14, cy: y + 16, r: 4, class: "dot" }),
    svg("text", { x: x + 25, y: y + 20, class: "name" }, item.title),
    svg("text", { x: x + 12, y: y + 35, class: "sub" }, item.sub.length > 26 ? `${item.sub.slice(0, 25)}…` : item.sub));
}

function heading(x, y, text) {
  return svg("text", { x, y, class: "heading" }, text);
}

function picture(width, height, groups, ...content) {
  const bad = Object.values(groups).flat().filter((item) => item.state === "bad").map((item) => item.title);
  const label = `The way of a message: clients, nginx, managers, brokers and PostgreSQL. ${bad.length ? `Not healthy: ${bad.join(", ")}` : "All are healthy"}.`;
  return svg("svg", { class: "map", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...content);
}

function column(x, top, items) {
  return items.map((item, at) => ({ item, x, y: top + at * (BOX.height + BOX.gap) }));
}

const heightOf = (boxes) => boxes.length * (BOX.height + BOX.gap) - BOX.gap;
const isActive = (writer) => !writer.item.sub.includes("standby");

function edge(from, to, kind) {
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const middle = (x1 + x2) / 2;
  return svg("path", { class: `edge ${kind}`, d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

const edges = (sources, targets, kind) => sources.flatMap((from) => targets.map((to) => edge(from, to, to.item.state === "bad" || from.item.state === "bad" ? "still" : kind)));

function drawWide(groups, flows) {
  const top = HEADING + 10;
  const readers = column(WIDE.managers, top, groups.readers);
  const writersTop = top + heightOf(readers) + 34;
  const writers = column(WIDE.managers, writersTop, groups.writers);
  const brokers = column(WIDE.stores, top, groups.brokers);
  const postgresTop = top + heightOf(brokers) + 34;
  const postgres = column(WIDE.stores, postgresTop, groups.postgres);
  const height = Math.max(writersTop + heightOf(writers), postgresTop + heightOf(postgres)) + 4;
  const middle = height / 2 - BOX.height / 2;
  const [clients] = column(WIDE.clients, middle, groups.clients);
  const [nginx] = column(WIDE.nginx, middle, groups.nginx);
  const active = writers.filter(isActive);
  return picture(WIDE.width, height, groups,
    svg("g", null,
      edges([clients], [nginx], flows.all), edges([nginx], readers, flows.out), edges([nginx], active, flows.in), edges([nginx], writers.filter((writer) => !isActive(writer)), "still"),
      edges(readers, brokers, flows.out), edges(active, brokers, flows.in),
      // Read managers read a standby, the active write manager writes to the primary.
      edges(readers, postgres.filter((server) => server.item.role === "standby"), "meta"), edges(active, postgres.filter((server) => server.item.role === "primary"), "meta")),
    heading(WIDE.managers, HEADING, "Read managers"), heading(WIDE.managers, writersTop - 10, "Write managers"),
    heading(WIDE.stores, HEADING, "Brokers: messages"), heading(WIDE.stores, postgresTop - 10, "PostgreSQL: metadata"),
    svg("text", { x: 197, y: middle - 30, class: "flow-text" }), svg("text", { x: 197, y: middle - 14, class: "flow-text" }),
    [clients, nginx, ...readers, ...writers, ...brokers, ...postgres].map(box));
}

/** From top to bottom, for phones: two boxes a row, one line from group to group. */
function drawNarrow(groups, flows) {
  const parts = [];
  let y = 0;
  const place = (title, items, kind) => {
    if (kind) {
      parts.push(svg("path", { class: `edge ${kind}`, d: `M${NARROW.width / 2} ${y} V${y + NARROW.between - 16}` }));
      y += NARROW.between;
    }
    if (title) {
      parts.push(heading(2, y - 4, title));
      y += 4;
    }
    items.forEach((item, at) => {
      const alone = items.length === 1;
      const x = alone ? (NARROW.width - BOX.width) / 2 : 2 + (at % NARROW.columns) * (BOX.width + 12);
      parts.push(box({ x, y: y + Math.floor(at / NARROW.columns) * (BOX.height + BOX.gap), item }));
    });
    y += Math.ceil(items.length / NARROW.columns) * (BOX.height + BOX.gap);
  };
  parts.push(svg("text", { x: NARROW.width / 2, y: 14, class: "flow-text" }), svg("text", { x: NARROW.width / 2, y: 32, class: "flow-text" }));
  y = 44;
  place("", groups.clients, "");
  place("", groups.nginx, flows.all);
  place("Read managers", groups.readers, flows.out);
  place("Write managers", groups.writers, flows.in);
  place("Brokers: messages", groups.brokers, flows.all);
  place("PostgreSQL: metadata", groups.postgres, "meta");
  return picture(NARROW.width, y, groups, ...parts);
}
