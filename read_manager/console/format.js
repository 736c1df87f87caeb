// Figures and times for people: humanised, with the exact value for those who hover.
import { h } from "./dom.js";

const NONE = "–";
const exactNumber = new Intl.NumberFormat("en-US");
const UNITS = ["", "k", "M", "G", "T", "P"];
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function digits(value) {
  const size = Math.abs(value);
  return size >= 100 || Number.isInteger(value) ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function scaled(value, base, units) {
  let unit = 0;
  while (Math.abs(value) >= base * 0.9995 && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  return [digits(value), units[unit]];
}

export function number(value) {
  if (!known(value)) return NONE;
  if (Math.abs(value) < 10000 && Number.isInteger(value)) return exactNumber.format(value);
  return scaled(value, 1000, UNITS).join(" ").trim();
}

export function bytes(value) {
  return known(value) ? scaled(value, 1024, BYTE_UNITS).join(" ") : NONE;
}

export function rate(value) {
  return known(value) ? `${number(value)}/s` : NONE;
}

export function byteRate(value) {
  return known(value) ? `${bytes(value)}/s` : NONE;
}

export function exact(value, unit = "") {
  return known(value) ? `${exactNumber.format(value)}${unit && ` ${unit}`}` : "not known";
}

/** A span with a humanised figure, and the exact one as its title. */
export function figure(text, value, unit) {
  return h("span", { title: exact(value, unit) }, text);
}

export function seconds(value) {
  if (!known(value)) return NONE;
  if (value < 0.0005) return "0 s";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${digits(value)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => value >= size);
  const [name, size] = units[first];
  const whole = Math.floor(value / size);
  const [nextName, nextSize] = units[first + 1] ?? [];
  const rest = nextSize ? Math.floor((value - whole * size) / nextSize) : 0;
  return rest && whole < 10 ? `${whole} ${name} ${rest} ${nextName}` : `${whole} ${name}`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dayAndClock = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
});
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function valid(ms) {
  return known(ms) && Math.abs(ms) <= 8.64e15;
}

export function time(ms) {
  if (!valid(ms)) return NONE;
  const date = new Date(ms);
  return date.toDateString() === new Date().toDateString() ? clock.format(date) : dayAndClock.format(date);
}

/** A <time> in the viewer's zone, with UTC as its title. A clock far outside of the calendar is shown as its number. */
export function when(ms) {
  if (!known(ms)) return NONE;
  if (!valid(ms)) return String(ms);
  const utc = new Date(ms).toISOString();
  return h("time", { datetime: utc, title: `${utc} · ${ms} ms` }, time(ms));
}

export function ago(ms, now = Date.now()) {
  return known(ms) ? `${seconds(Math.max(0, (now - ms) / 1000))} ago` : NONE;
}

export function retention(topic) {
  if (!topic) return NONE;
  const parts = [];
  if (known(topic.retention_ms)) parts.push(seconds(topic.retention_ms / 1000));
  if (known(topic.retention_bytes)) parts.push(`${bytes(topic.retention_bytes)} a partition`);
  return parts.join(", ") || "forever";
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}
