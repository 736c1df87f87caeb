// Tables that keep their rows while figures change: focus, selection and hover survive an update.
import { h, setText } from "./dom.js";
import { plural } from "./format.js";

const SHOWN_FIRST = 200;

/**
 * `columns`: `{name, label, cell(row), value?(row), title?(row), end?, fixed?, narrow?}`. `cell` returns text, or an
 * element, which is made once if `fixed`. Columns with a `value` can be sorted by. `key(row)` identifies a row.
 */
export function buildTable({ caption, columns, key, sort = null, descending = false, empty = "Nothing to show." }) {
  let order = sort;
  let down = descending;
  let rows = [];
  let limit = SHOWN_FIRST;
  const kept = new Map();
  const head = h("tr", null, columns.map((column) => {
    const inside = column.value
      ? h("button", { class: "sort", type: "button", onclick: () => sortBy(column) }, column.label)
      : column.label;
    return h("th", { scope: "col", class: classes(column), "data-name": column.name }, inside);
  }));
  const body = h("tbody");
  const nothing = h("p", { class: "quiet empty-rows", hidden: true }, empty);
  const more = h("button", { class: "small", type: "button", hidden: true, onclick: () => { limit += 1000; draw(); } });
  const element = h("div", { class: "table" },
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", null, h("caption", { class: "unseen" }, caption), h("thead", null, head), body)),
    nothing, more);

  function sortBy(column) {
    down = order === column.name ? !down : column.end === true;
    order = column.name;
    draw();
  }

  function sorted() {
    const column = columns.find((each) => each.name === order);
    if (!column?.value) return rows;
    const sign = down ? -1 : 1;
    return rows.map((row) => [column.value(row), row]).sort(([a], [b]) => {
      if (a === b) return 0;
      if (a === null || a === undefined) return 1; // what is not known comes last, in both directions
      if (b === null || b === undefined) return -1;
      return (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b) * sign;
    }).map(([, row]) => row);
  }

  function draw() {
    for (const cell of head.children) {
      const isOrder = cell.dataset.name === order;
      if (isOrder) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    const visible = sorted().slice(0, limit);
    const seen = new Set();
    visible.forEach((row, at) => {
      const id = key(row);
      seen.add(id);
      let line = kept.get(id);
      if (!line) kept.set(id, (line = h("tr", null, columns.map((column) => h("td", { class: classes(column) })))));
      columns.forEach((column, place) => fillCell(line.children[place], column, row));
      if (body.children[at] !== line) body.insertBefore(line, body.children[at] ?? null);
    });
    for (const [id, line] of kept) {
      if (seen.has(id)) continue;
      line.remove();
      kept.delete(id);
    }
    nothing.hidden = rows.length > 0;
    more.hidden = rows.length <= limit;
    more.textContent = `${plural(rows.length - visible.length, "more row")}: show them`;
  }

  return {
    element,
    set(given) {
      rows = given;
      draw();
    },
    setEmpty: (text) => setText(nothing, text),
  };
}

function classes(column) {
  return [column.end && "end", column.narrow && "wide-only", column.class].filter(Boolean).join(" ");
}

function fillCell(cell, column, row) {
  if (column.fixed && cell.firstChild) return;
  const content = column.cell(row);
  if (content instanceof Node) cell.replaceChildren(content);
  else if (Array.isArray(content)) cell.replaceChildren(...content);
  else setText(cell, content);
  if (column.title) cell.title = column.title(row);
}
