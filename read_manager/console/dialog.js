// Dialogs, notices and how a failed request is shown.
import { h } from "./dom.js";
import { ApiError } from "./api.js";

/** A failure in full: what, its code, what to do, and the id that finds it in the logs. */
export function failure(error) {
  if (!(error instanceof ApiError)) return h("p", { class: "failure", role: "alert" }, `This page has a defect, or the console was upgraded: ${error.message}. Reload the page.`);
  return h("p", { class: "failure", role: "alert" },
    h("strong", null, error.message),
    error.code !== null && h("span", { class: "code" }, ` code ${error.code}`),
    error.advice && h("span", null, ` ${error.advice}`),
    error.requestId && h("span", { class: "quiet small-text" }, ` Request ${error.requestId}`));
}

export function notice(text, kind = "ok") {
  const box = h("p", { class: `notice ${kind}` }, text);
  document.getElementById("notices").append(box);
  setTimeout(() => box.remove(), 6000);
}

/** Opens a modal dialog with a title and a way out; resolves when it is closed. */
export function openDialog(title, content, { wide = false } = {}) {
  const id = `dialog-${Math.random().toString(36).slice(2)}`;
  const close = h("button", { class: "ghost", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, "✕");
  const dialog = h("dialog", { class: wide ? "wide" : "", "aria-labelledby": id },
    h("header", null, h("h2", { id }, title), close), ...[content].flat());
  document.body.append(dialog);
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  window.addEventListener("hashchange", () => dialog.close(), { once: true });
  dialog.showModal();
  return dialog;
}
