// The state of the cluster as it is pushed: one stream for whatever page is open, and the last minutes of rates.
import { get, getOr } from "./api.js";
import { followEvents } from "./event_stream.js";

const KEPT_POINTS = 300;

let latest = null;
const points = { times: [], messagesIn: [], messagesOut: [], bytesIn: [], bytesOut: [] };

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

/** Names of all topics. The overview has those of the busiest thousand; the list of all is a 404 when there is none. */
export async function topicNames(signal, overview = latest) {
  const { topics, topic_count: count } = overview ?? (latest = await get("/v1/cluster/overview", null, signal));
  if (count !== null && topics.length === count) return topics.map((topic) => topic.topic).sort();
  return (await getOr({ topics: [] }, "/topics", null, signal)).topics;
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
