// The message browser of a topic: from newest, oldest, an offset or a time, filtered.
import { commands, h, panel, replace } from "./dom.js";
import { number, plural, zone } from "./format.js";
import { buildForm, FieldError, integer } from "./form.js";
import { failure } from "./dialog.js";
import { matches, messageRow, saveText } from "./message_view.js";
import { TopicReader } from "./message_reader.js";

const PAGE = 50;
const MOST_SEARCHED = 5000; // at a time; then it asks
const MOST_TOGETHER = 64; // partitions

export function showMessages({ view, topic, partitions, query, signal, writePath }) {
  const list = h("div", { class: "messages" });
  const state = h("p", { class: "quiet", role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: load }, "Load more");
  const saved = h("button", { class: "small", type: "button", hidden: true, onclick: download }, "Download these as NDJSON");
  const problem = h("div");
  let reader = null;
  let shown = [];
  let text = "";
  let run = 0;

  const together = partitions.length <= MOST_TOGETHER;
  const start = query.get("from") ?? "newest";
  const built = buildForm({
    fields: [
      { name: "from", label: "From", type: "select", value: start, options: [["newest", "newest"], ["oldest", "oldest"], ["offset", "offset"], ["time", "time"]] },
      { name: "offset", label: "Offset", value: query.get("offset") ?? "", placeholder: "0" },
      { name: "time", label: `Time (${zone})`, type: "datetime-local", step: 1, value: query.get("time") ?? "" },
      { name: "partition", label: "Partition", type: "select", value: query.get("partition") ?? (together ? "" : "0"), options: [...(together ? [["", "all"]] : []), ...partitions.map((each) => [String(each), String(each)])] },
      { name: "filter", label: "Filter", type: "search", value: query.get("filter") ?? "", placeholder: "text in key, value or headers" },
    ],
    action: "Show",
    submit: async (values) => {
      await open(values);
    },
  });
  built.form.classList.add("row-form");
  built.fields.filter.input.setAttribute("data-filter", "");
  const adapt = () => {
    const { from } = built.values();
    built.fields.offset.box.hidden = from !== "offset";
    built.fields.time.box.hidden = from !== "time";
    const only = partitions.length === 1;
    if (from === "offset" && built.fields.partition.input.value === "" && only) built.fields.partition.input.value = String(partitions[0]);
  };
  built.fields.from.input.addEventListener("input", adapt);
  adapt();
  view.append(h("section", { class: "panel", "aria-label": "What to show" }, built.form), problem, h("div", { class: "toolbar" }, state, saved), list, h("p", null, more));

  async function open(values) {
    const from = { kind: values.from };
    if (from.kind === "offset") {
      from.value = integer("offset", values.offset) ?? 0;
      if (values.partition === "") throw new FieldError("partition", "choose one: each partition has offsets of its own");
    }
    if (from.kind === "time") {
      from.value = new Date(values.time).getTime();
      if (!Number.isFinite(from.value)) throw new FieldError("time", "give a day and a time");
    }
    writePath({ from: values.from, offset: from.kind === "offset" ? values.offset : "", time: from.kind === "time" ? values.time : "", partition: values.partition, filter: values.filter });
    const chosen = values.partition === "" ? partitions : [Number(values.partition)];
    text = values.filter.trim();
    shown = [];
    replace(list);
    replace(problem);
    run += 1;
    reader = await TopicReader.open(topic, chosen, from, { limit: PAGE, signal });
    await load();
  }

  async function load() {
    const mine = (run += 1);
    more.disabled = true;
    replace(problem);
    let searched = 0;
    let found = 0;
    let ended = false;
    try {
      while (found < PAGE && searched < MOST_SEARCHED && mine === run && !signal.aborted) {
        const message = await reader.next();
        if (message === null) {
          ended = true;
          break;
        }
        searched += 1;
        if (searched % 200 === 0) state.textContent = `searched ${number(searched)} messages…`;
        if (!matches(message, text)) continue;
        found += 1;
        shown.push(message);
        list.append(messageRow(topic, message));
      }
    } catch (error) {
      if (signal.aborted || mine !== run) return;
      replace(problem, failure(error), error.status === 410 && h("p", null, h("button", { type: "button", onclick: () => fromFirst(error.details.beginning_offset) }, `Start at the first that is stored, ${error.details.beginning_offset}`)));
    }
    if (mine !== run || signal.aborted) return;
    more.disabled = false;
    more.hidden = ended || reader === null;
    saved.hidden = shown.length === 0;
    state.textContent = shown.length
      ? `${plural(shown.length, "message")}${text ? ` with “${text}”` : ""}${ended ? ", and no more" : ""}`
      : ended ? (text ? `Nothing has “${text}”.` : "There is no message here.") : `Nothing found in ${number(searched)} messages yet.`;
    if (ended && !shown.length && !text && !list.children.length) list.append(panel("Send a first one", commands(produceCommands(topic))));
  }

  function fromFirst(offset) {
    built.fields.offset.input.value = String(offset);
    built.form.requestSubmit();
  }

  function download() {
    saveText(shown.map((message) => JSON.stringify(message)).join("\n") + "\n", `${topic}.ndjson`);
  }

  built.form.requestSubmit();
}

export function produceCommands(topic) {
  const url = location.origin;
  return [
    ["curl", `curl -s ${url}/v1/topics/${topic}/messages -H 'Content-Type: application/json' -d '{"messages": [{"value": "hello", "key": "a"}]}'`],
    ["Python", `from myqueue import Producer\n\nwith Producer("${url}", topic="${topic}") as producer:\n    producer.send("hello", key="a")`],
  ];
}
