// One message for people: text, pretty-printed JSON or a hex dump, cut where it is long, and never markup.
import { copyButton, h, replace } from "./dom.js";
import { bytes, exact, when } from "./format.js";

const PREVIEW_CHARS = 240;
const FIRST_CHARS = 4096;
const PIECE_CHARS = 4096;
const FIRST_HEX_BYTES = 1024;
const MOST_HEX_BYTES = 1 << 20;
const MOST_PRETTY_CHARS = 2 << 20;

// Control characters, and those that turn the direction of text or are not seen: shown as their codes.
// eslint-disable-next-line no-control-regex
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

export function visible(text) {
  return text.replace(UNSEEN, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A key or value of the API: `{text, bytes}`; text is null if it is not UTF-8. */
export function decode(content) {
  if (content === null || content === undefined) return null;
  if (typeof content === "string") return { text: content, get bytes() { return new TextEncoder().encode(content); } };
  const binary = atob(content.base64);
  return { text: null, bytes: Uint8Array.from(binary, (character) => character.charCodeAt(0)) };
}

function hexDump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = data.subarray(at, at + 16);
    const hex = Array.from(row, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

export function preview(content) {
  const decoded = decode(content);
  if (decoded === null) return "–";
  if (decoded.text === null) return Array.from(decoded.bytes.subarray(0, 48), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return visible(decoded.text.slice(0, PREVIEW_CHARS).replace(/\s+/g, " "));
}

function prettyJson(text) {
  if (!/^\s*[[{]/.test(text) || text.length > MOST_PRETTY_CHARS) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indent(text);
}

/** By the tokens of the text itself: JSON.parse would round large numbers and drop doubled names. */
function indent(text) {
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g)) {
    if (token === "{" || token === "[") {
      depth += 1;
      out += token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      out = /[[{]\s*$/.test(out) ? out.trimEnd() + token : out + line() + token;
    } else if (token === ",") out += token + line();
    else if (token === ":") out += ": ";
    else out += token;
  }
  return out;
}

/** Blocks of which the browser lays out only those in view: one of a million characters takes seconds. */
function pieces(text) {
  const found = [];
  for (let at = 0; at < text.length; ) {
    let end = Math.min(text.length, at + PIECE_CHARS);
    const line = end < text.length ? text.lastIndexOf("\n", end) : -1;
    if (line > at) {
      found.push(text.slice(at, line));
      at = line + 1;
      continue;
    }
    if (end < text.length && /[\ud800-\udbff]/.test(text[end - 1])) end -= 1; // not between the halves of a character
    found.push(text.slice(at, end));
    at = end;
  }
  return found;
}

function save(data, name) {
  const url = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export const saveText = (text, name) => save(new TextEncoder().encode(text), name);

/** A value with its views, "show all" and download. */
function contentView(label, content, fileName) {
  const decoded = decode(content);
  if (decoded === null) return [h("div", { class: "value-tools" }, h("b", null, label), "none")];
  const size = decoded.bytes.length;
  const pretty = decoded.text === null ? null : prettyJson(decoded.text);
  const views = { ...(pretty !== null && { JSON: () => pretty }), ...(decoded.text !== null && { text: () => decoded.text }), hex: null };
  const pre = h("pre", { class: "value", tabindex: "0", role: "group", "aria-label": label });
  const all = h("button", { class: "small", type: "button", onclick: () => draw(current, true) }, "Show all");
  let current = Object.keys(views)[0];
  const buttons = Object.keys(views).map((name) => h("button", { class: "small", type: "button", "aria-pressed": "false", onclick: () => draw(name, false) }, name));

  function draw(name, complete) {
    current = name;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.textContent === name));
    const isHex = name === "hex";
    const shown = isHex ? Math.min(size, complete ? MOST_HEX_BYTES : FIRST_HEX_BYTES) : 0;
    const whole = isHex ? "" : views[name]();
    const cut = isHex ? shown < size : !complete && whole.length > FIRST_CHARS;
    const text = isHex ? hexDump(decoded.bytes.subarray(0, shown)) : visible(cut ? whole.slice(0, FIRST_CHARS) : whole);
    replace(pre, pieces(cut ? `${text}\n…` : text).map((piece) => h("span", { class: "piece" }, piece)));
    all.hidden = !cut || complete;
    all.textContent = `Show all ${bytes(size)}`;
  }

  draw(current, false);
  const ending = decoded.text === null ? "bin" : pretty !== null ? "json" : "txt";
  return [
    h("div", { class: "value-tools" }, h("b", null, label), h("span", { title: exact(size, "bytes") }, bytes(size)), buttons, all,
      fileName && h("button", { class: "small", type: "button", onclick: () => save(decoded.bytes, `${fileName}.${ending}`) }, "Download"),
      decoded.text !== null && decoded.text.length <= FIRST_CHARS && copyButton(decoded.text)),
    pre,
  ];
}

function details(topic, message) {
  return h("div", { class: "body" },
    h("p", { class: "facts" },
      h("span", null, "sent ", when(message.timestamp)), h("span", null, "appended ", when(message.append_time)),
      typeof message.producer_id === "number" && h("span", null, `producer ${message.producer_id}`)),
    contentView("Key", message.key, null),
    contentView("Value", message.value, `${topic}-${message.partition_id}-${message.offset}`),
    message.headers?.length > 0 && [h("h3", null, "Headers"), message.headers.map((header) => contentView(visible(header.key), header.value, null))]);
}

/** A line that opens; its body is made when it is first opened. */
export function messageRow(topic, message) {
  const row = h("details", { class: "message" }, h("summary", null,
    h("span", { class: "mono" }, `${message.partition_id}:${message.offset}`),
    h("span", { class: "quiet" }, when(message.append_time ?? message.timestamp)),
    h("span", { class: "cut", title: "key" }, preview(message.key)),
    h("span", { class: "cut value-cut" }, preview(message.value))));
  row.addEventListener("toggle", () => row.children.length === 1 && row.append(details(topic, message)), { once: true });
  return row;
}

/** Whether a message has `text` in its key, value or headers, without regard to case. */
export function matches(message, text) {
  if (text === "") return true;
  const wanted = text.toLowerCase();
  const holds = (content) => {
    if (content === null || content === undefined) return false;
    if (typeof content === "string") return content.toLowerCase().includes(wanted);
    return atob(content.base64).toLowerCase().includes(wanted);
  };
  return holds(message.key) || holds(message.value) || (message.headers ?? []).some((header) => header.key.toLowerCase().includes(wanted) || holds(header.value));
}
