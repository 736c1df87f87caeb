// The form that sends one message.
import { commands, h, panel, replace } from "./dom.js";
import { ApiError, call, topicLink, topicPath } from "./api.js";
import { buildForm, FieldError } from "./form.js";
import { produceCommands } from "./messages.js";

function content(field, text, kind) {
  if (kind === "base64") {
    const packed = text.replace(/\s+/g, "");
    try {
      atob(packed);
    } catch {
      throw new FieldError(field, "this is not base64");
    }
    return { base64: packed };
  }
  if (kind === "json") {
    try {
      JSON.parse(text);
    } catch (error) {
      throw new FieldError(field, `this is not JSON: ${error.message}`);
    }
  }
  return text;
}

function headersOf(text) {
  return text.split("\n").filter((line) => line.trim() !== "").map((line) => {
    const colon = line.indexOf(":");
    if (colon < 1) throw new FieldError("headers", `“${line.slice(0, 40)}” has no colon; write name: value, one a line`);
    return { key: line.slice(0, colon).trim(), value: line.slice(colon + 1).trim() };
  });
}

export function showProduce({ view, topic, partitions }) {
  // The same message under the same key is stored once, however often the button is pressed after a failure.
  let sent = { body: null, key: null };
  const built = buildForm({
    fields: [
      { name: "value", label: "Value", type: "textarea", class: "full", rows: 8 },
      { name: "kind", label: "The value is", type: "select", value: "text", options: [["text", "text"], ["json", "JSON, checked before it is sent"], ["base64", "bytes, as base64"]] },
      { name: "key", label: "Key", hint: "Messages with the same key go to the same partition. Empty: no key." },
      { name: "partition", label: "Partition", type: "select", field: ["partition_id"], value: "", options: [["", "by key, or in turn"], ...partitions.map((each) => [String(each), String(each)])] },
      { name: "headers", label: "Headers", type: "textarea", class: "full", rows: 2, placeholder: "source: shop", hint: "name: value, one a line" },
    ],
    action: "Send",
    codes: { 40402: "partition", 41301: "value" },
    submit: async (values) => {
      const message = { value: content("value", values.value, values.kind) };
      if (values.key !== "") message.key = values.key;
      if (values.partition !== "") message.partition_id = Number(values.partition);
      const headers = headersOf(values.headers);
      if (headers.length) message.headers = headers;
      const body = { messages: [message] };
      const text = JSON.stringify(body);
      if (sent.body !== text) sent = { body: text, key: newKey() };
      const answer = await call("POST", `${topicPath(topic)}/messages`, { body, headers: { "Idempotency-Key": sent.key } });
      const [stored] = answer.offsets;
      if (stored.error_code) throw new ApiError(503, { ...stored }, null);
      sent = { body: null, key: null };
      return stored;
    },
    done: (stored, { outcome, fields }) => {
      const link = `${topicLink(topic, "messages")}?from=offset&partition=${stored.partition_id}&offset=${stored.offset}`;
      replace(outcome, h("p", { class: "explain", role: "status" }, "Stored in partition ", h("b", null, String(stored.partition_id)), " at offset ", h("b", null, String(stored.offset)), ". ", h("a", { href: link }, "Look at it"), "."));
      fields.value.input.focus();
    },
  });
  view.append(panel("Send a message", built.form), panel("From a shell or a program", commands(produceCommands(topic))));
  built.fields.value.input.focus({ preventScroll: true });
}

function newKey() {
  return `console-${Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
