// Server-Sent Events over fetch: unlike EventSource it shows the server's refusal and can resume from a known id.
import { ApiError } from "./api.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;
const SILENCE_MS = 45000; // the server sends keep-alive comments more often than that

/**
 * Follows `url` until `signal`. Closed while the page is hidden, and opened again with growing waits after a failure.
 * `onEvent(type, data, end)`, where `end()` follows no more; `onState(state, error)` with "connecting", "live",
 * "reconnecting", "paused" or "still". With `resume` a new connection goes on behind the last event.
 */
export function followEvents(url, { onEvent, onState, signal, resume = false }) {
  let attempts = 0;
  let connection = null;
  let timer = 0;
  let lastId = null;
  let hasEnded = false;

  function close() {
    clearTimeout(timer);
    connection?.abort();
    connection = null;
  }

  function end() {
    hasEnded = true;
    close();
    onState("still", null);
  }

  async function open() {
    close();
    if (signal.aborted || hasEnded) return;
    if (document.hidden) return onState("paused", null);
    onState(attempts ? "reconnecting" : "connecting", null);
    const current = new AbortController();
    connection = current;
    let failure = null;
    try {
      const headers = { Accept: "text/event-stream" };
      if (resume && lastId !== null) headers["Last-Event-ID"] = lastId;
      const answer = await fetch(url, { headers, signal: current.signal, cache: "no-store" });
      if (!answer.ok) throw await refusal(answer);
      onState("live", null);
      await read(answer.body, current, (id) => (lastId = id), (type, data) => {
        attempts = 0;
        onEvent(type, data, end);
      });
    } catch (error) {
      if (connection !== current || signal.aborted) return;
      failure = error;
      if (error instanceof ApiError && (error.status === 400 || error.status === 422)) lastId = null; // of a log that is gone
    }
    if (connection !== current || signal.aborted) return;
    connection = null;
    onState("reconnecting", failure instanceof ApiError ? failure : null);
    const wait = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** attempts) * (0.75 + Math.random() / 2);
    attempts += 1;
    timer = setTimeout(open, wait);
  }

  document.addEventListener("visibilitychange", () => {
    if (hasEnded) return;
    if (!document.hidden) return open();
    close();
    onState("paused", null);
  }, { signal });
  signal.addEventListener("abort", close);
  open();
}

async function refusal(answer) {
  const body = await answer.json().catch(() => ({ message: `the server answered ${answer.status}` }));
  return new ApiError(answer.status, body, answer.headers.get("Retry-After"));
}

async function read(body, connection, seen, deliver) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let watchdog = 0;
  let rest = "";
  let event = { type: "message", data: [], id: null };
  try {
    for (;;) {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => reader.cancel().catch(() => {}), SILENCE_MS);
      const { value, done } = await reader.read();
      if (done || connection.signal.aborted) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const raw of lines) {
        const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
        if (line === "") {
          if (event.id !== null) seen(event.id); // also of an event without data: a stream begins with one
          if (event.data.length) deliver(event.type, event.data.join("\n"));
          event = { type: "message", data: [], id: null };
        } else if (!line.startsWith(":")) {
          const colon = line.indexOf(":");
          const field = colon < 0 ? line : line.slice(0, colon);
          const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
          if (field === "data") event.data.push(value);
          else if (field === "event") event.type = value;
          else if (field === "id") event.id = value;
        }
      }
    }
  } finally {
    clearTimeout(watchdog);
  }
}
