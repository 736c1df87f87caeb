// Lines over time, drawn by uPlot: colours of the page, a legend with the figures under the pointer.
import { h } from "./dom.js";
import { time } from "./format.js";

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6", "--line-7", "--line-8"];
const POWERS = Array.from({ length: 54 }, (_, power) => 2 ** (power - 1)); // round distances for bytes
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const drawn = new Set();

function colour(element, name) {
  const probe = h("span");
  element.append(probe);
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Again in the colours of another scheme. */
export function redrawCharts() {
  for (const chart of drawn) chart.rebuild();
}

/**
 * `series`: names of lines; `format` writes a figure. `set(times in ms, [[figures], …], names?)` draws; a figure that is
 * not known is null and leaves a gap.
 */
export function buildChart({ title, series, format, height = 180, signal, binary = false, spanGaps = true }) {
  const legend = h("div", { class: "legend" });
  const area = h("div", { class: "plot", role: "img", "aria-label": title });
  const waiting = h("p", { class: "quiet waiting" }, "No points yet.");
  const element = h("figure", { class: "chart" }, h("figcaption", null, h("span", null, title), legend), area, waiting);
  let plot = null;
  let names = series;
  let data = null;

  function label(at) {
    legend.replaceChildren(...names.map((name, place) => {
      const figures = data[place + 1];
      const index = at ?? lastKnown(figures);
      const key = h("i", { class: `key key-${place % COLOURS.length}` });
      return h("span", null, key, `${name} `, h("b", null, format(figures[index] ?? null)));
    }), at === null ? "" : h("span", { class: "quiet" }, time(data[0][at] * 1000)));
    const last = names.map((name, place) => `${name} ${format(data[place + 1][lastKnown(data[place + 1])] ?? null)}`);
    area.setAttribute("aria-label", `${title}: ${last.join(", ")}`);
  }

  function build() {
    const axis = { stroke: colour(element, "--muted"), grid: { stroke: colour(element, "--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(200, area.clientWidth), height, legend: { show: false }, padding: [8, 8, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, incrs: SECONDS, size: 28, space: 70, values: (_, ticks, __, ___, step) => ticks.map((tick) => tickText(tick, step)) },
        { ...axis, incrs: binary ? POWERS : undefined, size: 68, space: 34, values: (_, ticks) => ticks.map((tick) => format(tick)) }],
      series: [{}, ...names.map((_, place) => ({
        stroke: colour(element, COLOURS[place % COLOURS.length]), width: 1.75, points: { show: false }, spanGaps,
        fill: names.length < 3 ? colour(element, COLOURS[place]).replace(/^rgb\((.*)\)$/, "rgba($1, 0.08)") : undefined,
      }))],
      hooks: { setCursor: [(self) => data && label(self.cursor.idx ?? null)] },
    }, data, area);
  }

  const chart = {
    element,
    rebuild: () => data && element.isConnected && build(),
    set(times, figures, given = names) {
      waiting.hidden = times.length > 1;
      area.hidden = times.length < 2;
      const changed = given.length !== names.length || given.some((name, at) => name !== names[at]);
      names = given;
      data = [times.map((ms) => ms / 1000), ...figures];
      label(null);
      if (times.length < 2 || !element.isConnected) return;
      if (plot === null || changed) build();
      else plot.setData(data);
    },
  };
  const observer = new ResizeObserver(() => {
    if (plot && area.clientWidth) plot.setSize({ width: area.clientWidth, height });
    else chart.rebuild();
  });
  observer.observe(area);
  drawn.add(chart);
  signal.addEventListener("abort", () => {
    observer.disconnect();
    drawn.delete(chart);
    plot?.destroy();
  });
  return chart;
}

function lastKnown(figures) {
  for (let at = figures.length - 1; at > 0; at -= 1) if (figures[at] !== null && figures[at] !== undefined) return at;
  return 0;
}

function tickText(tick, step) {
  const date = new Date(tick * 1000);
  const two = (value) => String(value).padStart(2, "0");
  if (step >= 86400) return date.toLocaleDateString(undefined, { month: "short", day: "2-digit" });
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return step < 60 ? `${text}:${two(date.getSeconds())}` : text;
}
