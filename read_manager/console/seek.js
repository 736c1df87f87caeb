// Moving a consumer's cursors: first a preview of old and new positions, then a confirmation.
import { h, replace } from "./dom.js";
import { exact, number, plural, zone } from "./format.js";
import { call, get, topicPath } from "./api.js";
import { failure, notice, openDialog } from "./dialog.js";
import { buildForm, FieldError, integer } from "./form.js";
import { buildTable } from "./table.js";

async function targets(topic, partitions, to) {
  if (to.timestamp === undefined) {
    const offsets = new Map((await get(`${topicPath(topic)}/offsets`)).partitions.map((each) => [each.partition_id, each]));
    return new Map(partitions.map((id) => {
      const { beginning_offset: first, end_offset: end } = offsets.get(id);
      return [id, to === "earliest" ? first : to === "latest" ? end : to.offset];
    }));
  }
  const found = await Promise.all(partitions.map(async (id) => {
    const answer = await get(`${topicPath(topic)}/partitions/${id}/offsets`, { timestamp: to.timestamp });
    return [id, answer.offset ?? answer.end_offset];
  }));
  return new Map(found);
}

function request(values) {
  const body = {};
  if (values.partition !== "") body.partition_id = Number(values.partition);
  if (values.to === "offset") {
    const offset = integer("offset", values.offset);
    if (offset === undefined) throw new FieldError("offset", "give an offset");
    if (values.partition === "") throw new FieldError("partition", "choose one: each partition has offsets of its own");
    body.to = { offset };
  } else if (values.to === "time") {
    const timestamp = new Date(values.time).getTime();
    if (!Number.isFinite(timestamp)) throw new FieldError("time", "give a day and a time");
    body.to = { timestamp };
  } else body.to = values.to;
  return body;
}

export function openSeek(consumer, lag, done) {
  const cursors = new Map(lag.partitions.map((each) => [each.partition_id, each.cursor]));
  const preview = h("div", { "aria-live": "polite" });
  const built = buildForm({
    fields: [
      { name: "to", label: "To", type: "select", field: ["to"], value: "earliest", options: [["earliest", "the oldest message"], ["latest", "the end: only what comes"], ["time", "a time"], ["offset", "an offset"]] },
      { name: "time", label: `Time (${zone})`, type: "datetime-local", step: 1, field: ["timestamp"] },
      { name: "offset", label: "Offset" },
      { name: "partition", label: "Partition", type: "select", field: ["partition_id"], value: "", options: [["", "all"], ...[...cursors.keys()].map((id) => [String(id), String(id)])] },
    ],
    action: "Preview",
    submit: async (values) => {
      const body = request(values);
      const partitions = body.partition_id === undefined ? [...cursors.keys()] : [body.partition_id];
      return { body, goals: await targets(consumer.topic, partitions, body.to) };
    },
    done: ({ body, goals }) => showPreview(body, goals),
  });
  const adapt = () => {
    const { to } = built.values();
    built.fields.time.box.hidden = to !== "time";
    built.fields.offset.box.hidden = to !== "offset";
    replace(preview);
  };
  built.form.addEventListener("input", adapt);
  adapt();

  function showPreview(body, goals) {
    const rows = [...goals].map(([partition, next]) => ({ partition, now: cursors.get(partition), next }));
    const table = buildTable({
      caption: "Old and new positions",
      key: (row) => row.partition,
      columns: [
        { name: "partition", label: "Partition", end: true, cell: (row) => String(row.partition) },
        { name: "now", label: "Now", end: true, cell: (row) => exact(row.now) },
        { name: "next", label: "After", end: true, cell: (row) => exact(row.next) },
        { name: "change", label: "Change", cell: (row) => change(row.next - row.now) },
      ],
    });
    table.set(rows);
    const again = rows.reduce((sum, row) => sum + Math.max(0, row.now - row.next), 0);
    const skipped = rows.reduce((sum, row) => sum + Math.max(0, row.next - row.now), 0);
    const words = [again && `${plural(again, "message")} will be read again`, skipped && `${plural(skipped, "message")} will be skipped`].filter(Boolean);
    const confirm = h("button", { class: skipped ? "danger" : "primary", type: "button", onclick: () => send(body, confirm) }, "Move the cursors");
    replace(preview, h("h3", null, "Preview"), table.element,
      h("p", null, words.length ? `${words.join(", ")}.` : "Nothing changes.", " Members that read now go on from the new position. Positions are as of now: messages that are written or read meanwhile move them."),
      h("div", { class: "outcome" }), h("div", { class: "actions" }, confirm));
    confirm.scrollIntoView({ block: "nearest" });
  }

  async function send(body, button) {
    button.disabled = true;
    try {
      const answer = await call("POST", `/v1/consumers/${consumer.consumer_id}/seek`, { body });
      dialog.close();
      notice(`${plural(answer.cursors.length, "cursor")} of ${consumer.name ?? `consumer ${consumer.consumer_id}`} moved.`);
      done();
    } catch (error) {
      replace(preview.querySelector(".outcome"), failure(error));
      button.disabled = false;
    }
  }

  const dialog = openDialog(`Seek ${consumer.name ?? `consumer ${consumer.consumer_id}`}`, [built.form, preview]);
}

function change(by) {
  if (by === 0) return h("span", { class: "quiet" }, "stays");
  return h("span", { class: by < 0 ? "up" : "down" }, by < 0 ? `${number(-by)} read again` : `${number(by)} skipped`);
}
