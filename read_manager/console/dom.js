// Builds elements. Text is only ever set as text, so that nothing in a message can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** `h("a", {href: "#/", class: "x", onclick: f}, "text", node)`. Strings become text nodes. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Sets the text only if it differs: a selection and a screen reader are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
}

/** Runs `work` now and then every `everyMs`, never twice at a time, not while the page is hidden, until `signal`. */
export function repeat(work, everyMs, signal) {
  let timer = 0;
  async function turn() {
    clearTimeout(timer);
    timer = 0;
    if (signal.aborted) return;
    if (!document.hidden) await work();
    if (!signal.aborted && !timer) timer = setTimeout(turn, everyMs);
  }
  const shown = () => document.hidden || !timer || turn();
  document.addEventListener("visibilitychange", shown, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  return turn();
}

export function copyButton(text, label = "Copy") {
  const button = h("button", { class: "small", type: "button" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand"; // browsers allow the clipboard on HTTPS and localhost only
    }
    setTimeout(() => (button.textContent = label), 2000);
  });
  return button;
}

/** Commands to copy: `[["curl", "curl …"], ["Python", "…"]]`. */
export function commands(items) {
  return items.map(([title, text]) =>
    h("figure", { class: "command" },
      h("figcaption", null, h("span", null, title), copyButton(text)),
      h("pre", { tabindex: "0" }, h("code", null, text))));
}

export function panel(title, ...children) {
  return h("section", { class: "panel" }, h("h2", null, title), ...children);
}

export function badge(kind, text) {
  return h("span", { class: `badge ${kind}` }, text);
}

export function crumbs(...parts) {
  return h("nav", { class: "crumbs", "aria-label": "Where you are" },
    parts.map(([text, href]) => (href ? [h("a", { href }, text), h("span", { "aria-hidden": "true" }, " / ")] : h("span", { "aria-current": "page" }, text))));
}
