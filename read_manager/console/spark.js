// What the Spark jobs have measured: when they run, their last runs, and sizes, rates and lag over time.
import { badge, commands, h, panel, repeat, replace } from "./dom.js";
import { ago, bytes, number, seconds, when } from "./format.js";
import { get, getOr } from "./api.js";
import { topicNames } from "./cluster.js";
import { failure } from "./dialog.js";
import { buildTable } from "./table.js";
import { buildChart } from "./chart.js";

const RELOAD_MS = 5000;
const RUNS = 100;
const MOST_LINES = 8;
const RANGES = { "1h": "1m", "6h": "5m", "24h": "15m", "7d": "2h", "30d": "6h" };
const OUTCOMES = { succeeded: "ok", failed: "bad", lost: "bad", running: "" };

export async function show({ view, query, signal, followCluster }) {
  const problem = h("div");
  const jobs = buildTable({
    caption: "Jobs",
    key: (row) => row.job,
    columns: [
      { name: "job", label: "Job", cell: (row) => row.job },
      { name: "every", label: "Runs", cell: (row) => (row.every ? `every ${seconds(row.every / 1000)}` : "when it is started"), title: () => "as seen by the times of its last scheduled runs" },
      { name: "next", label: "Next", cell: (row) => (row.next === null ? "–" : row.next > Date.now() ? `in ${seconds((row.next - Date.now()) / 1000)}` : `due ${ago(row.next)}`) },
      { name: "last", label: "Last success", cell: (row) => (row.success ? ago(row.success.ended_at) : "never seen") },
      { name: "took", label: "Took", end: true, cell: (row) => (row.success ? seconds((row.success.ended_at - row.success.started_at) / 1000) : "–") },
      { name: "state", label: "Now", cell: (row) => badge(OUTCOMES[row.newest.outcome], row.newest.outcome) },
    ],
  });
  const runs = buildTable({
    caption: "Last runs",
    key: (row) => row.run_id,
    columns: [
      { name: "job", label: "Job", cell: (row) => row.job, value: (row) => row.job },
      { name: "started", label: "Started", cell: (row) => when(row.started_at), value: (row) => row.started_at },
      { name: "took", label: "Took", end: true, cell: (row) => (row.ended_at === null ? "–" : seconds((row.ended_at - row.started_at) / 1000)), value: (row) => (row.ended_at === null ? null : row.ended_at - row.started_at) },
      { name: "outcome", label: "Outcome", cell: (row) => badge(OUTCOMES[row.outcome], row.outcome), value: (row) => row.outcome },
      { name: "rows", label: "Rows", end: true, cell: (row) => number(row.rows), value: (row) => row.rows },
      { name: "trigger", label: "Trigger", narrow: true, cell: (row) => row.trigger.replace("_", " "), value: (row) => row.trigger },
      { name: "message", label: "Message", class: "name", narrow: true, cell: (row) => row.message ?? "" },
    ],
    sort: "started",
    descending: true,
  });
  const empty = panel("Start the jobs",
    h("p", null, "No job has run yet. The jobs measure sizes, rates and lag, and leave points of history that are drawn here."),
    commands([["On one machine", "make spark"], ["In containers", "docker compose --profile spark up -d"], ["What they leave", `curl -s '${location.origin}/v1/stats/topics/totals?last=24h'`]]));
  const names = await topicNames(signal);
  const range = select("range", "Time", Object.keys(RANGES).map((each) => [each, `last ${each}`]), query.get("last") ?? "24h");
  const topic = select("topic", "Topic", [["", "all topics"], ...names.map((each) => [each, each])], query.get("topic") ?? "");
  const charts = {
    stored: buildChart({ title: "Stored bytes", series: [], format: bytes, binary: true, signal }),
    rate: buildChart({ title: "Appended, messages a minute", series: [], format: number, signal }),
    lag: buildChart({ title: "Consumers behind, in messages", series: [], format: number, signal }),
    age: buildChart({ title: "Consumers behind, in seconds", series: [], format: seconds, signal }),
  };
  const figures = h("div", null,
    h("div", { class: "toolbar" }, range.element, topic.element),
    h("div", { class: "two charts" }, Object.values(charts).map((chart) => h("section", { class: "panel" }, chart.element))));
  const lists = h("div", null, panel("Schedule", jobs.element), panel("Last runs", runs.element));
  view.append(h("h1", null, "Spark"), problem, empty, figures, lists);

  async function loadCharts() {
    const asked = { last: range.input.value, step: RANGES[range.input.value], topic: topic.input.value };
    const nothing = { topics: [], consumers: [] };
    const [topics, consumers] = await Promise.all([
      getOr(nothing, "/v1/stats/topics/totals", asked, signal), getOr(nothing, "/v1/stats/consumers/totals", asked, signal),
    ]);
    const consumer = (row) => `${row.name ?? `consumer ${row.consumer_id}`} on ${row.topic}`;
    draw(charts.stored, topics.topics, (row) => row.topic, "stored_bytes");
    draw(charts.rate, topics.topics, (row) => row.topic, "rate_in_per_minute");
    draw(charts.lag, consumers.consumers, consumer, "messages");
    draw(charts.age, consumers.consumers, consumer, "seconds");
  }

  async function reload() {
    try {
      const answer = await get("/v1/stats/runs", { limit: RUNS }, signal);
      empty.hidden = answer.runs.length > 0;
      lists.hidden = figures.hidden = answer.runs.length === 0;
      jobs.set(summaries(answer.runs));
      runs.set(answer.runs);
      if (answer.runs.length) await loadCharts();
      replace(problem);
    } catch (error) {
      if (!signal.aborted) replace(problem, failure(error));
    }
  }

  for (const chosen of [range, topic]) chosen.input.addEventListener("change", reload);
  followCluster(() => {});
  await repeat(reload, RELOAD_MS, signal);
}

function select(name, label, options, value) {
  const input = h("select", { id: name }, options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)));
  return { input, element: h("label", { for: name }, `${label} `, input) };
}

/** One row for each job: the distance of its last scheduled runs is its schedule, as far as this page can know. */
export function summaries(runs) {
  const byJob = Map.groupBy ? Map.groupBy(runs, (run) => run.job) : runs.reduce((map, run) => map.set(run.job, [...(map.get(run.job) ?? []), run]), new Map());
  return [...byJob].map(([job, own]) => {
    const ticks = own.map((run) => run.tick).filter((tick) => tick !== null);
    const every = ticks.length > 1 && ticks[0] > ticks[1] ? ticks[0] - ticks[1] : null;
    return { job, newest: own[0], success: own.find((run) => run.outcome === "succeeded") ?? null, every, next: every === null ? null : ticks[0] + every };
  }).sort((a, b) => a.job.localeCompare(b.job));
}

/** The rows with the largest last figures, as lines over the union of their times. */
function draw(chart, rows, label, figure) {
  const last = (row) => row.history.find((point) => point[figure] !== null)?.[figure] ?? -1;
  const chosen = rows.filter((row) => row.history.length).sort((a, b) => last(b) - last(a)).slice(0, MOST_LINES);
  const times = [...new Set(chosen.flatMap((row) => row.history.map((point) => point.computed_at)))].sort((a, b) => a - b);
  const at = new Map(times.map((time, place) => [time, place]));
  const lines = chosen.map((row) => {
    const line = Array(times.length).fill(null);
    for (const point of row.history) line[at.get(point.computed_at)] = point[figure];
    return line;
  });
  chart.set(times, lines, chosen.map(label));
}
