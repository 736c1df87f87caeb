// The state of the cluster as it is pushed: one stream for whatever page is open, and the last minutes of rates.
import { followEvents } from "./event_stream.js";

const KEPT_POINTS = 300;

let latest = null;
const points = { times: [], messagesIn: [], messagesOut: [], bytesIn: [], bytesOut: [] };

export const lastOverview = () => latest;
export const rateHistory = () => points;

function remember(overview) {
  const last = points.times.at(-1);
  if (last !== undefined && overview.at_ms <= last) return;
  const { rates } = overview;
  const row = [overview.at_ms, rates.messages_in_per_s, rates.messages_out_per_s, rates.bytes_in_per_s, rates.bytes_out_per_s];
  Object.values(points).forEach((list, at) => {
    // A line across the time in which nobody looked would be invented.
    if (last !== undefined && overview.at_ms - last > 10000) list.push(at === 0 ? last + 1 : null);
    list.push(row[at]);
    while (list.length > KEPT_POINTS) list.shift();
  });
}

/** Calls `show(overview)` with the last state, if there is one, and with each new one, until `signal`. */
export function followCluster(show, { onState, signal }) {
  if (latest) show(latest);
  followEvents("/v1/cluster/events", {
    signal,
    onState,
    onEvent: (type, data) => {
      if (type !== "overview") return;
      latest = JSON.parse(data);
      remember(latest);
      show(latest);
    },
  });
}
