// Requests to the API. Failures become one kind of error, with the server's words and what to do.

let sessionToken = null; // of the last write: later reads see it, whichever server answers

export class ApiError extends Error {
  constructor(status, body, retryAfter) {
    super(body.message || `the server answered ${status}`);
    this.status = status;
    this.code = body.error_code ?? null;
    this.outcome = body.outcome ?? null;
    this.retriable = body.retriable ?? status >= 500;
    this.requestId = body.request_id ?? null;
    this.details = body.details ?? {};
    this.retryAfter = retryAfter;
  }

  /** What the message says of fields, such as "name: too long; messages.0.key: not text": paths and texts. */
  get fields() {
    if (this.status !== 400) return [];
    const found = this.message.split("; ").map((part) => /^([A-Za-z_][\w.]*): (.*)$/s.exec(part));
    return found.filter(Boolean).map(([, path, text]) => [path.split("."), text]);
  }

  get advice() {
    if (this.outcome === "unknown") return "It is not known whether this was done: look before you repeat it.";
    if (this.status === 0) return "The cluster does not answer. Is it running, and is the network up?";
    if (this.retriable) return this.retryAfter ? `Try again in ${this.retryAfter} s.` : "Try again in a moment.";
    if (this.status === 404) return "It may have been deleted. Reload the page to see what there is.";
    if (this.status >= 500) return "This is a defect: the request id finds it in the logs.";
    return "";
  }
}

function address(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export async function call(method, path, { query, body, headers, signal } = {}) {
  const sent = { Accept: "application/json", ...headers };
  if (sessionToken && method === "GET") sent["X-Myqueue-Token"] = sessionToken;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let answer;
  let text;
  try {
    answer = await fetch(address(path, query), {
      method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store",
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, { message: "no answer", retriable: true, outcome: method === "GET" ? null : "unknown" }, null);
  }
  const token = answer.headers.get("X-Myqueue-Token");
  if (token) sessionToken = token;
  if (answer.ok && !text) return null;
  let parsed;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new ApiError(answer.status, { message: `the server answered ${answer.status}, and not as JSON` }, null);
  }
  if (!answer.ok) throw new ApiError(answer.status, parsed, answer.headers.get("Retry-After"));
  return parsed;
}

export const get = (path, query, signal) => call("GET", path, { query, signal });

export async function getOr(missing, path, query, signal) {
  try {
    return await get(path, query, signal);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return missing;
    throw error;
  }
}

export const topicPath = (topic) => `/v1/topics/${encodeURIComponent(topic)}`;
export const topicLink = (topic, tab = "") => `#/topics/${encodeURIComponent(topic)}${tab && `/${tab}`}`;

/** What Spark's stream sinks stage their rows in, and names that only the cluster itself may use. */
export const isInternal = (topic) => topic.startsWith("__") || topic.startsWith("_staged.");
