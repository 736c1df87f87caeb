// Forms: the server's message stands beside the field it is about, and a form is sent once at a time.
import { h, replace } from "./dom.js";
import { ApiError } from "./api.js";
import { failure, openDialog } from "./dialog.js";

let count = 0;

/**
 * A field of a form. `type`: text, number, textarea, select, checkbox or datetime-local; `options` are `[value, label]`.
 * Its `field` is the name under which the server knows it.
 */
function buildField(spec) {
  const id = `field-${(count += 1)}`;
  const common = {
    id, name: spec.name, required: spec.required, "aria-describedby": `${id}-note`, autocomplete: "off", spellcheck: "false",
    placeholder: spec.placeholder, maxlength: spec.maxlength, min: spec.min, max: spec.max, step: spec.step,
    list: spec.list, rows: spec.rows,
  };
  let input;
  if (spec.type === "select") {
    input = h("select", common, spec.options.map(([value, label]) => h("option", { value, selected: value === spec.value }, label)));
  } else if (spec.type === "textarea") {
    input = h("textarea", { rows: 6, ...common, value: spec.value ?? "" });
  } else if (spec.type === "checkbox") {
    input = h("input", { ...common, type: "checkbox", checked: spec.value ?? false });
  } else {
    input = h("input", { ...common, type: spec.type ?? "text", value: spec.value ?? "" });
  }
  const problem = h("span", { class: "problem", role: "alert" });
  const note = h("span", { class: "note", id: `${id}-note` }, spec.hint && h("span", { class: "hint" }, spec.hint), problem);
  const label = h("label", { for: id }, spec.label);
  const box = h("div", { class: `field ${spec.type === "checkbox" ? "check" : ""} ${spec.class ?? ""}` },
    spec.type === "checkbox" ? [input, label] : [label, input], note);
  function setProblem(text) {
    problem.textContent = text;
    if (text) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
  input.addEventListener("input", () => setProblem(""));
  return { input, box, setProblem, spec, read: () => (spec.type === "checkbox" ? input.checked : input.value) };
}

/**
 * `submit(values)` sends the request; what it returns goes to `done`. It may throw an ApiError, or a FieldError for what
 * is wrong before anything is sent. `codes` maps error codes to the field that they are about.
 */
export function buildForm({ fields, action, submit, done, codes = {}, danger = false, extra = null, canSubmit = null }) {
  const built = Object.fromEntries(fields.map((spec) => [spec.name, buildField(spec)]));
  const button = h("button", { class: danger ? "danger" : "primary", type: "submit" }, action);
  const outcome = h("div", { class: "outcome" });
  const values = () => Object.fromEntries(Object.entries(built).map(([name, field]) => [name, field.read()]));
  const check = () => (button.disabled = canSubmit !== null && !canSubmit(values()));
  const form = h("form", { novalidate: true, oninput: check },
    h("div", { class: "fields" }, Object.values(built).map((field) => field.box)), extra, outcome,
    h("div", { class: "actions" }, button));

  const fieldOf = (name) => built[name] ?? Object.values(built).find((each) => each.spec.field?.includes(name));

  function show(error) {
    const named = error instanceof ApiError ? error.fields : error instanceof FieldError ? [[[error.field], error.message]] : [];
    if (error instanceof ApiError && codes[error.code]) named.push([[codes[error.code]], error.message]);
    const found = named.map(([path, text]) => [path.map(fieldOf).find(Boolean), text]);
    for (const [field, text] of found) field?.setProblem(text);
    if (!found.length || found.some(([field]) => !field)) replace(outcome, failure(error));
    found.find(([field]) => field)?.[0].input.focus();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    replace(outcome);
    for (const field of Object.values(built)) field.setProblem("");
    button.disabled = true;
    button.setAttribute("aria-busy", "true");
    try {
      const answer = await submit(values());
      await done?.(answer, { form, outcome, fields: built });
    } catch (error) {
      show(error);
    } finally {
      button.removeAttribute("aria-busy");
      check();
    }
  });
  check();
  return { form, fields: built, outcome, button, values, check };
}

export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** A whole number or undefined if nothing was typed. */
export function integer(field, text, { min = 0 } = {}) {
  const trimmed = text.trim().replace(/[_,\s]/g, "");
  if (trimmed === "") return undefined;
  if (!/^-?\d+$/.test(trimmed) || !Number.isSafeInteger(Number(trimmed))) throw new FieldError(field, "must be a whole number");
  if (Number(trimmed) < min) throw new FieldError(field, `must be at least ${min}`);
  return Number(trimmed);
}

const DURATIONS = { ms: 1, s: 1000, m: 60000, min: 60000, h: 3600000, d: 86400000, w: 604800000 };
const SIZES = { b: 1, k: 1024, kb: 1024, kib: 1024, m: 1024 ** 2, mb: 1024 ** 2, mib: 1024 ** 2, g: 1024 ** 3, gb: 1024 ** 3, gib: 1024 ** 3, t: 1024 ** 4, tb: 1024 ** 4, tib: 1024 ** 4 };

function withUnit(field, text, units, example) {
  const trimmed = text.trim().toLowerCase();
  if (trimmed === "") return null;
  const match = /^(\d+(?:\.\d+)?)\s*([a-z]+)$/.exec(trimmed);
  if (!match || !(match[2] in units)) throw new FieldError(field, `give a number and a unit, such as ${example}`);
  return Math.round(Number(match[1]) * units[match[2]]);
}

/** "7d" in milliseconds, null if nothing was typed. */
export const duration = (field, text) => withUnit(field, text, DURATIONS, "7d, 12h or 30m");
export const byteSize = (field, text) => withUnit(field, text, SIZES, "10GiB or 500MiB");

function exactly(value, units) {
  if (value === null || value === undefined) return "";
  const fitting = units.filter(([, size]) => value % size === 0).at(-1);
  return `${value / fitting[1]}${fitting[0]}`;
}
export const durationText = (ms) => exactly(ms, [["ms", 1], ["s", 1000], ["m", 60000], ["h", 3600000], ["d", 86400000]]);
export const sizeText = (size) => exactly(size, [["b", 1], ["KiB", 1024], ["MiB", 1024 ** 2], ["GiB", 1024 ** 3], ["TiB", 1024 ** 4]]);

/** Asks to type `name` before `submit` is sent: for what cannot be undone. */
export function confirmByTyping({ title, explain, name, action, submit, done }) {
  const built = buildForm({
    fields: [{ name: "typed", label: `Type ${name} to confirm`, required: true }],
    action,
    danger: true,
    canSubmit: ({ typed }) => typed === name,
    submit,
    done: async (answer) => {
      dialog.close();
      await done(answer);
    },
  });
  const dialog = openDialog(title, [h("p", null, explain), built.form]);
  built.fields.typed.input.focus();
}
