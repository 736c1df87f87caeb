// Reads a topic forwards or backwards over several partitions, merged by the time at which messages were appended.
import { get, topicPath } from "./api.js";

const MAX_BYTES = 4 << 20; // of one request

class PartitionReader {
  constructor(topic, partition, { backwards, chunk, signal }) {
    Object.assign(this, { partition, backwards, chunk, signal, waiting: [], path: `${topicPath(topic)}/partitions/${partition}/messages` });
  }

  async open(from) {
    if (from.kind === "time") {
      const offsets = await get(this.path.replace(/messages$/, "offsets"), { timestamp: from.value }, this.signal);
      this.next = offsets.offset ?? offsets.end_offset;
      this.end = offsets.end_offset;
      return this;
    }
    const offsets = await get(this.path.replace(/messages$/, "offsets"), null, this.signal);
    this.first = offsets.beginning_offset;
    this.end = offsets.end_offset;
    this.next = this.backwards ? this.end : from.kind === "offset" ? from.value : this.first;
    return this;
  }

  get isAtEnd() {
    return this.backwards ? this.next <= this.first : this.next >= this.end;
  }

  /** The next message, which stays until it is taken; null at the end. */
  async peek() {
    while (!this.waiting.length && !this.isAtEnd) await (this.backwards ? this.readBack() : this.readOn());
    return this.waiting[0] ?? null;
  }

  async readOn() {
    const answer = await get(this.path, { offset: this.next, limit: this.chunk, max_bytes: MAX_BYTES }, this.signal);
    this.waiting = answer.messages;
    this.next = answer.messages.length ? answer.next_offset : this.end; // the end may lie ahead of this replica
  }

  async readBack() {
    const start = Math.max(this.first, this.next - this.chunk);
    const found = [];
    for (let at = start; at < this.next; ) {
      const answer = await get(this.path, { offset: at, limit: this.next - at, max_bytes: MAX_BYTES }, this.signal).catch((error) => {
        if (error.status !== 410) throw error; // retention has passed it meanwhile
        this.first = error.details.beginning_offset;
        return { messages: [], next_offset: Math.max(at + 1, Math.min(this.next, this.first)) };
      });
      found.push(...answer.messages);
      if (!answer.messages.length && answer.next_offset <= at) break;
      at = answer.next_offset;
    }
    this.waiting = found.filter((message) => message.offset < this.next).reverse();
    this.next = start;
  }
}

export class TopicReader {
  /** `from`: `{kind: "newest" | "oldest" | "offset" | "time", value}`. */
  static async open(topic, partitions, from, { limit, signal }) {
    const reader = new TopicReader();
    reader.backwards = from.kind === "newest";
    const chunk = Math.max(5, Math.ceil(limit / partitions.length));
    reader.readers = await Promise.all(partitions.map((partition) =>
      new PartitionReader(topic, partition, { backwards: reader.backwards, chunk, signal }).open(from)));
    return reader;
  }

  async next() {
    const heads = await Promise.all(this.readers.map((reader) => reader.peek()));
    let best = -1;
    heads.forEach((message, at) => {
      if (message === null) return;
      const later = best < 0 || (this.backwards ? message.append_time > heads[best].append_time : message.append_time < heads[best].append_time);
      if (later) best = at;
    });
    return best < 0 ? null : this.readers[best].waiting.shift();
  }
}
