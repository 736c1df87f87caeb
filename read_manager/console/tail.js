// The live tail of a topic: messages as they arrive, newest first, with a bound on what the page keeps.
import { commands, h, panel, replace } from "./dom.js";
import { failure } from "./dialog.js";
import { number, plural } from "./format.js";
import { topicPath } from "./api.js";
import { matches, messageRow } from "./message_view.js";
import { produceCommands } from "./messages.js";

const MOST_ROWS = 300;

export function showTail({ view, topic, followEvents }) {
  let waiting = [];
  let paused = false;
  let seen = 0;
  let skipped = 0;
  let drawing = false;
  const filter = h("input", { type: "search", placeholder: "Filter what arrives", "aria-label": "Filter what arrives", "data-filter": "" });
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: toggle }, "Pause");
  const clear = h("button", { type: "button", onclick: () => { replace(list); waiting = []; show(); } }, "Clear");
  const state = h("span", { class: "quiet" });
  const problem = h("div");
  const list = h("div", { class: "messages tail", tabindex: "0", role: "log", "aria-label": `Messages of ${topic} as they arrive`, "aria-live": "off" });
  const quiet = panel("Waiting for messages", h("p", { class: "quiet" }, "Whatever is produced from now on appears here. To try it:"), commands(produceCommands(topic)));
  view.append(h("div", { class: "toolbar" }, filter, pause, clear, state), problem, list, quiet);

  function show() {
    state.textContent = `${plural(seen, "message")} since this page was opened${paused ? `, ${number(waiting.length)} waiting` : ""}${skipped ? `, ${number(skipped)} not kept` : ""}`;
  }

  function toggle() {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    draw();
  }

  function draw() {
    drawing = false;
    quiet.hidden = seen > 0;
    show();
    if (paused) return;
    list.prepend(...waiting.splice(0).reverse().map((message) => messageRow(topic, message)));
    while (list.children.length > MOST_ROWS) list.lastChild.remove();
  }

  followEvents(`${topicPath(topic)}/events?from=latest`, {
    resume: true,
    onState: (state_, error) => replace(problem, error && failure(error)),
    onEvent: (type, data, end) => {
      if (type === "gap") skipped += JSON.parse(data).messages; // retention was faster
      if (type === "end") {
        end();
        replace(problem, h("p", { class: "explain" }, "The topic was deleted. Nothing will follow."));
      }
      if (type !== "message") return;
      seen += 1;
      const message = JSON.parse(data);
      if (matches(message, filter.value.trim())) waiting.push(message);
      if (waiting.length > MOST_ROWS) skipped += waiting.splice(0, waiting.length - MOST_ROWS).length;
      if (!drawing) {
        drawing = true;
        setTimeout(draw, 100); // ten times a second at most, however many arrive
      }
    },
  });
  show();
}
