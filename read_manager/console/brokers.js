// Brokers: who leads and holds how much, disks, and when each was last heard.
import { badge, commands, h, panel } from "./dom.js";
import { bytes, exact, number, plural, rate, seconds } from "./format.js";
import { buildTable } from "./table.js";

const LITTLE_FREE = 0.1;

export async function show({ view, followCluster }) {
  const facts = h("p", { class: "facts" });
  const table = buildTable({
    caption: "Brokers",
    key: (row) => row.broker_id,
    sort: "broker",
    empty: "No broker has registered yet.",
    columns: [
      { name: "broker", label: "Broker", cell: (row) => `broker ${row.broker_id}`, value: (row) => row.broker_id },
      { name: "health", label: "Health", cell: (row) => badge(row.healthy ? "ok" : "bad", row.healthy ? "healthy" : "down"), value: (row) => String(row.healthy) },
      { name: "heartbeat", label: "Heartbeat", end: true, cell: (row) => (row.heartbeat_age_s === null ? "–" : `${seconds(row.heartbeat_age_s)} ago`), value: (row) => row.heartbeat_age_s },
      { name: "leaders", label: "Leads", end: true, cell: (row) => number(row.leaders), value: (row) => row.leaders },
      { name: "replicas", label: "Replicas", end: true, cell: (row) => number(row.replicas), value: (row) => row.replicas },
      { name: "in", label: "In", end: true, narrow: true, cell: (row) => rate(row.messages_in_per_s ?? null), value: (row) => row.messages_in_per_s ?? null },
      { name: "out", label: "Out", end: true, narrow: true, cell: (row) => rate(row.messages_out_per_s ?? null), value: (row) => row.messages_out_per_s ?? null },
      { name: "used", label: "Stored", end: true, cell: (row) => bytes(row.disk_used_bytes), title: (row) => exact(row.disk_used_bytes, "bytes"), value: (row) => row.disk_used_bytes },
      { name: "free", label: "Disk free", end: true, cell: diskCell, title: (row) => exact(row.disk_free_bytes, "bytes"), value: (row) => row.disk_free_bytes },
      { name: "address", label: "Address", narrow: true, class: "mono", cell: (row) => row.address ?? "–" },
    ],
  });
  view.append(h("h1", null, "Brokers"), facts, table.element,
    panel("When one is down", h("p", null, "Partitions with a majority of replicas left go on; the others wait. A broker that comes back catches up by itself. On one machine:"),
      commands([["shell", "make status\nmake start NAME=broker-2"]])));
  followCluster((overview) => {
    table.set(overview.brokers);
    const leaders = overview.brokers.map((broker) => broker.leaders ?? 0);
    facts.textContent = `${plural(overview.brokers.length, "broker")}, ${plural(leaders.reduce((sum, each) => sum + each, 0), "partition")} led, ${plural(overview.under_replicated_count ?? 0, "partition")} under-replicated, ${number(overview.leaderless_count)} without a leader`;
  });
}

function diskCell(row) {
  if (row.disk_free_bytes === null || row.disk_free_bytes === undefined) return "–";
  const total = row.disk_free_bytes + (row.disk_used_bytes ?? 0);
  const part = total ? (row.disk_used_bytes ?? 0) / total : 0;
  const fill = h("i");
  fill.style.width = `${Math.round(part * 100)}%`;
  return h("span", null, h("span", { class: `bar-cell ${1 - part < LITTLE_FREE ? "bad" : ""}`, "aria-hidden": "true" }, fill), bytes(row.disk_free_bytes));
}
