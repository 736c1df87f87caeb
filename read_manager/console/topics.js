// All topics: sizes, rates and retention; making one, changing its retention, deleting it.
import { commands, h, panel, replace } from "./dom.js";
import { bytes, exact, number, plural, rate, retention } from "./format.js";
import { call, get, isInternal, topicLink, topicPath } from "./api.js";
import { topicNames } from "./cluster.js";
import { failure, notice, openDialog } from "./dialog.js";
import { buildForm, byteSize, confirmByTyping, duration, durationText, integer, sizeText } from "./form.js";
import { buildTable } from "./table.js";
import { firstCommands } from "./overview.js";

const DESCRIBED_AT_ONCE = 4;
const MOST_DESCRIBED = 300;
const RELOAD_MS = 5000;

const deleted = new Set(); // by this page: the next overview may still have them

export function createTopic(done) {
  const built = buildForm({
    fields: [
      { name: "name", label: "Name", required: true, maxlength: 300, hint: "Letters, digits, dot, underscore and hyphen, at most 200." },
      { name: "partitions", label: "Partitions", value: "4", hint: "How many consumers can share the work. It cannot be changed later." },
      { name: "replication", label: "Replicas", placeholder: "3, or as many as there are brokers", hint: "Of each partition, on different brokers." },
      ...retentionFields({}),
    ],
    action: "Create topic",
    codes: { 40901: "name" },
    submit: async (values) => {
      const name = values.name.trim();
      const body = { name, partitions: integer("partitions", values.partitions), ...retentionOf(values) };
      const replication = integer("replication", values.replication);
      if (replication !== undefined) body.replication = replication;
      await call("POST", "/topics", { body });
      return name;
    },
    done: (name) => {
      dialog.close();
      deleted.delete(name);
      notice(`Topic ${name} was created.`);
      done(name);
    },
  });
  const dialog = openDialog("Create a topic", built.form);
  built.fields.name.input.focus();
}

function retentionFields(topic) {
  return [
    { name: "retention_ms", label: "Keep for", value: durationText(topic.retention_ms), placeholder: "forever", hint: "Such as 7d, 12h or 30m. Empty: no limit." },
    { name: "retention_bytes", label: "Keep at most", value: sizeText(topic.retention_bytes), placeholder: "no limit", hint: "Of each partition, such as 10GiB. Empty: no limit." },
  ];
}

function retentionOf(values) {
  return { retention_ms: duration("retention_ms", values.retention_ms), retention_bytes: byteSize("retention_bytes", values.retention_bytes) };
}

/** A form that changes how long a topic keeps its messages; `done` gets the new description. */
export function retentionForm(topic, done) {
  return buildForm({
    fields: retentionFields(topic),
    action: "Change retention",
    extra: h("p", { class: "quiet" }, "A shorter retention deletes older messages for good, within about a second."),
    submit: (values) => call("PATCH", topicPath(topic.topic), { body: retentionOf(values) }),
    done: (described) => {
      notice(`${topic.topic} keeps its messages: ${retention(described)}.`);
      done(described);
    },
  });
}

export function deleteTopic(name, done) {
  confirmByTyping({
    title: "Delete a topic",
    explain: `${name} goes with all of its messages, producers and consumers. This cannot be undone.`,
    name,
    action: "Delete topic",
    submit: () => call("DELETE", topicPath(name)),
    done: () => {
      deleted.add(name);
      notice(`Topic ${name} was deleted.`);
      done();
    },
  });
}

export async function show({ view, signal, query, followCluster }) {
  let names = await topicNames(signal);
  let known = new Set(names);
  let loading = false;
  let loadedAt = 0;
  let figures = new Map();
  const described = new Map();
  const filter = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter topics by name", "data-filter": "", value: query.get("filter") ?? "" });
  const internal = h("input", { type: "checkbox", id: "internal" });
  const count = h("span", { class: "quiet", role: "status" });
  const table = buildTable({
    caption: "Topics",
    key: (row) => row.topic,
    sort: "topic",
    empty: "No topic has such a name.",
    columns: [
      { name: "topic", label: "Topic", fixed: true, class: "name", cell: (row) => h("a", { href: topicLink(row.topic) }, row.topic), value: (row) => row.topic },
      { name: "partitions", label: "Partitions", end: true, cell: (row) => number(row.partitions), value: (row) => row.partitions },
      { name: "messages", label: "Messages", end: true, cell: (row) => number(row.messages), title: (row) => exact(row.messages), value: (row) => row.messages },
      { name: "size", label: "Stored", end: true, cell: (row) => bytes(row.stored_bytes), title: (row) => exact(row.stored_bytes, "bytes"), value: (row) => row.stored_bytes },
      { name: "rate", label: "In", end: true, cell: (row) => rate(row.messages_in_per_s), title: (row) => exact(row.messages_in_per_s, "messages/s"), value: (row) => row.messages_in_per_s },
      { name: "retention", label: "Retention", narrow: true, cell: (row) => retention(row.description), value: (row) => (row.description ? row.description.retention_ms ?? Infinity : null) },
      { name: "actions", label: "Actions", fixed: true, class: "row-actions", cell: (row) => rowActions(row) },
    ],
  });
  const empty = panel("Make a first topic",
    h("p", null, "A topic is a log of messages, split into partitions. ", h("button", { class: "primary", type: "button", onclick: create }, "Create topic"), " Or from a shell or a program:"), commands(firstCommands()));
  const tools = h("div", { class: "toolbar" }, filter,
    h("label", { class: "check", for: "internal" }, internal, " internal topics"), count,
    h("button", { class: "primary", type: "button", "data-new": "", onclick: create }, "Create topic"));
  const problem = h("div");
  view.append(h("h1", null, "Topics"), problem, tools, table.element, empty);

  function rowActions(row) {
    const button = (text, act, label) => h("button", { class: "small", type: "button", "aria-label": `${label} ${row.topic}`, onclick: act }, text);
    return h("span", null, button("Retention", () => alter(row.topic), "Retention of"), button("Delete", () => remove(row.topic), "Delete"));
  }

  function rows() {
    const wanted = filter.value.trim().toLowerCase();
    return names
      .filter((name) => !deleted.has(name) && (internal.checked || !isInternal(name)) && name.toLowerCase().includes(wanted))
      .map((name) => ({ ...figures.get(name), topic: name, partitions: figures.get(name)?.partitions ?? described.get(name)?.partitions ?? null, description: described.get(name) }));
  }

  function draw() {
    const shown = rows();
    const hidden = internal.checked ? 0 : names.filter(isInternal).length;
    count.textContent = `${plural(shown.length, "topic")}${hidden ? `, ${number(hidden)} internal hidden` : ""}`;
    const isEmpty = names.every((name) => deleted.has(name));
    empty.hidden = !isEmpty;
    table.element.hidden = tools.hidden = isEmpty;
    table.set(shown);
  }

  function create() {
    createTopic((name) => (location.hash = topicLink(name)));
  }

  async function alter(name) {
    try {
      const topic = await get(topicPath(name), null, signal);
      const built = retentionForm(topic, (changed) => {
        described.set(name, changed);
        dialog.close();
        draw();
      });
      const dialog = openDialog(`Retention of ${name}`, built.form);
    } catch (error) {
      replace(problem, failure(error));
    }
  }

  async function reload(overview) {
    try {
      names = await topicNames(signal, overview);
      replace(problem);
    } catch (error) {
      if (!signal.aborted) replace(problem, failure(error));
    }
    known = new Set(names);
    if (signal.aborted) return;
    draw();
    await describe();
  }

  function remove(name) {
    deleteTopic(name, draw);
  }

  /** Retention is a part of each topic's description only: of those shown, a few at a time. */
  async function describe() {
    const waiting = rows().map((row) => row.topic).filter((name) => !described.has(name)).slice(0, MOST_DESCRIBED);
    const next = async () => {
      for (let name = waiting.shift(); name !== undefined && !signal.aborted; name = waiting.shift()) {
        try {
          described.set(name, await get(topicPath(name), null, signal));
        } catch {
          described.set(name, undefined); // deleted meanwhile: the next list says so
        }
      }
    };
    await Promise.all(Array.from({ length: DESCRIBED_AT_ONCE }, next));
    if (!signal.aborted) draw();
  }

  filter.addEventListener("input", draw);
  internal.addEventListener("change", () => { draw(); describe(); });
  followCluster((overview) => {
    const before = names.length;
    figures = new Map(overview.topics.map((topic) => [topic.topic, topic]));
    for (const name of deleted) if (!figures.has(name)) deleted.delete(name);
    const isOther = overview.topic_count !== before || overview.topics.some((topic) => !known.has(topic.topic));
    const isCapped = overview.topics.length !== overview.topic_count; // then the list is asked for, and not each second
    if (isOther && !loading && (!isCapped || Date.now() - loadedAt > RELOAD_MS)) {
      loading = true;
      loadedAt = Date.now();
      reload(overview).finally(() => (loading = false));
    } else draw();
  });
  draw();
  describe();
}
