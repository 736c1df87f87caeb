// The frame around all pages: routes, navigation, shortcuts, colours, and the state of the page's one event stream.
import { h, replace, setText } from "./dom.js";
import { failure, openDialog } from "./dialog.js";
import { followCluster } from "./cluster.js";
import { followEvents } from "./event_stream.js";
import { plural } from "./format.js";

const PAGES = [
  { path: /^\/$/, nav: "/", title: "Overview", load: () => import("./overview.js") },
  { path: /^\/topics$/, nav: "/topics", title: "Topics", load: () => import("./topics.js") },
  { path: /^\/topics\/(?<topic>[^/]+)(?:\/(?<tab>messages|live|produce|settings))?$/, nav: "/topics", title: "Topic", load: () => import("./topic.js") },
  { path: /^\/consumers$/, nav: "/consumers", title: "Consumers", load: () => import("./consumers.js") },
  { path: /^\/consumers\/(?<consumer>\d+)$/, nav: "/consumers", title: "Consumer", load: () => import("./consumer.js") },
  { path: /^\/brokers$/, nav: "/brokers", title: "Brokers", load: () => import("./brokers.js") },
  { path: /^\/spark$/, nav: "/spark", title: "Spark", load: () => import("./spark.js") },
];
const NAV = [["Overview", "/", "o"], ["Topics", "/topics", "t"], ["Consumers", "/consumers", "c"], ["Brokers", "/brokers", "b"], ["Spark", "/spark", "s"]];
const STATE_TEXTS = { connecting: "connecting", live: "live", reconnecting: "reconnecting", paused: "paused", still: "not live" };

const main = document.getElementById("main");
const nav = document.querySelector(".nav");
const live = document.querySelector(".live");
let leave = new AbortController();
let shownPath = null;

function showState(state, error) {
  live.dataset.state = state;
  setText(live, STATE_TEXTS[state]);
  live.title = error ? `${error.message}. ${error.advice}` : "";
}

/** On the link to the overview, from every page. */
function showAlerts(alerts) {
  const count = alerts.filter((alert) => alert.severity !== "info").length;
  const isCritical = alerts.some((alert) => alert.severity === "critical");
  const mark = nav.firstChild.querySelector(".badge");
  mark.hidden = count === 0;
  mark.className = `badge ${isCritical ? "bad" : "warn"}`;
  setText(mark, String(count));
  mark.title = plural(count, "alert");
}

function parse() {
  const [path, query = ""] = (location.hash.slice(1) || "/").split("?");
  return { path: path.startsWith("/") ? path : null, query: new URLSearchParams(query) };
}

function find(path) {
  for (const page of PAGES) {
    const match = page.path.exec(path);
    if (match) return { page, values: match.groups ?? {} };
  }
  return null;
}

function decoded(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value && decodeURIComponent(value)]));
}

async function route() {
  const { path, query } = parse();
  if (path === null) return; // the skip link
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const found = find(path);
  for (const link of nav.children) {
    if (found && link.getAttribute("href") === `#${found.page.nav}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showState("connecting", null);
  const view = h("div", { class: "page" });
  let values;
  try {
    values = found && decoded(found.values);
  } catch {
    values = null; // a broken percent-encoding
  }
  if (!found || values === null) {
    document.title = "Not found · myqueue";
    showState("still", null);
    replace(main, h("h1", null, "There is no such page"), h("p", null, "Go to the ", h("a", { href: "#/" }, "overview"), "."));
    return;
  }
  document.title = `${values.topic ?? found.page.title} · myqueue`;
  const context = {
    ...values,
    query,
    signal,
    view,
    setTitle: (text) => (document.title = `${text} · myqueue`),
    /** A page has one stream: of the cluster, or of what it chooses. */
    followCluster: (show) => followCluster((overview) => { showAlerts(overview.alerts); show(overview); }, { onState: showState, signal }),
    followEvents: (url, options) => followEvents(url, {
      signal, ...options, onState: (state, error) => { showState(state, error); options.onState?.(state, error); },
    }),
    notLive: () => showState("still", null),
  };
  try {
    const { show } = await found.page.load();
    if (signal.aborted) return;
    replace(main, view);
    await show(context);
  } catch (error) {
    if (signal.aborted) return;
    showState("still", null);
    replace(main, h("h1", null, found.page.title), failure(error), h("p", null, h("button", { type: "button", onclick: route }, "Try again"), " or go to the ", h("a", { href: "#/" }, "overview"), "."));
  }
  if (shownPath !== null && shownPath !== path && !signal.aborted) main.focus({ preventScroll: true });
  if (shownPath !== path) scrollTo(0, 0);
  shownPath = path;
}

// ---- colours ----

const themeButton = document.getElementById("theme");
const THEMES = { "": ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

function showTheme() {
  const [sign, name] = THEMES[document.documentElement.dataset.theme ?? ""];
  themeButton.textContent = sign;
  themeButton.setAttribute("aria-label", `Colours: ${name}`);
  themeButton.title = `Colours: ${name}`;
}

async function nextTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("myqueue-theme", next);
  showTheme();
  (await import("./chart.js")).redrawCharts();
}

// ---- keys ----

const KEYS = [
  ["g then o t c b s", "Go to overview, topics, consumers, brokers, Spark"],
  ["/", "To the filter of this page"],
  ["n", "New: topic, or message on a topic's page"],
  ["d", "Change the colours"],
  ["?", "This help"],
  ["Esc", "Close a dialog"],
];

function showHelp() {
  openDialog("Keyboard shortcuts", h("dl", { class: "keys" },
    KEYS.map(([keys, what]) => [h("dt", null, keys.split(" ").map((key) => (key === "then" ? " then " : h("kbd", null, key)))), h("dd", null, what)])));
}

let going = 0;
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const key = event.key;
  if (Date.now() - going < 1500) {
    going = 0;
    const found = NAV.find(([, , letter]) => letter === key);
    if (found) location.hash = `#${found[1]}`;
    return;
  }
  const actions = {
    "?": showHelp,
    d: nextTheme,
    g: () => (going = Date.now()),
    "/": () => document.querySelector("[data-filter]")?.focus(),
    n: () => document.querySelector("[data-new]")?.click(),
  };
  if (!actions[key]) return;
  event.preventDefault();
  actions[key]();
}

replace(nav, NAV.map(([text, path]) => h("a", { href: `#${path}` }, text)));
nav.firstChild.append(h("span", { class: "badge", hidden: true }));
showTheme();
themeButton.addEventListener("click", nextTheme);
document.getElementById("help").addEventListener("click", showHelp);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", async () => (await import("./chart.js")).redrawCharts());
document.addEventListener("keydown", onKey);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", route);
route();
