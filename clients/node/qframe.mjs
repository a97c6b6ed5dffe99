// Dispatches jobs to qframe: over HTTP (HttpClient), or as Laravel's payload into Redis (RedisClient).

import { createHmac, randomBytes, randomUUID } from "node:crypto";
import { connect } from "node:net";
import { connect as connectTls } from "node:tls";
import { setTimeout as sleep } from "node:timers/promises";

/** A dispatch was refused; `problem` is the answer's body, with `errors` where the data does not fit. */
export class Refused extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title ?? "refused");
    this.problem = problem;
  }
}

/** The push was sent and no answer came: the job may be queued. */
export class InDoubt extends Error {}

const REPEATED = new Set([408, 429, 500, 502, 503, 504]);

/** Dispatches over HTTP: `new HttpClient("https://queue.example.com", token)`. */
export class HttpClient {
  /** `patience` is how many seconds a dispatch is repeated while nothing answers. */
  constructor(url, token, { patience = 30, timeout = 10 } = {}) {
    this.url = url.replace(/\/+$/, "");
    this.token = token;
    this.patience = patience;
    this.timeout = timeout;
  }

  /**
   * Dispatches a job and returns `{id, job, queue, connection, duplicate}`. It is repeated with the
   * same key until it is answered, and so is queued once. `key` is by default a new one.
   */
  async dispatch(job, data = {}, { queue, connection, delay, key = randomUUID() } = {}) {
    const body = JSON.stringify({ job, data, queue, connection, delay });
    const headers = {
      Authorization: `Bearer ${this.token}`,
      "Content-Type": "application/json",
      "Idempotency-Key": key,
    };
    const until = Date.now() + this.patience * 1000;
    for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
      let answer, wait, why;
      try {
        const signal = AbortSignal.timeout(this.timeout * 1000);
        answer = await fetch(`${this.url}/api/v1/jobs`, { method: "POST", headers, body, signal });
        const text = await answer.text();
        if (answer.ok) return JSON.parse(text);
        why = new Refused(problemIn(text, answer.status));
        wait = Number(answer.headers.get("Retry-After") ?? 0) * 1000;
      } catch (error) {
        why = error; // the network's: whether it arrived is unknown, and does not matter
      }
      const isFinal = answer !== undefined && !REPEATED.has(answer.status);
      const next = Math.max(pause * (0.5 + Math.random() / 2), wait ?? 0);
      if (isFinal || Date.now() + next > until) throw why;
      await sleep(next);
    }
  }
}

function problemIn(text, status) {
  try {
    return JSON.parse(text);
  } catch {
    return { status, detail: text.trim() };
  }
}

/** A uuid of version 7, in which qframe finds the time of the dispatch. */
export function uuid7() {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** Laravel's payload of a job, as text. `more` are further keys, such as `maxTries`. */
export function payload(job, data = {}, more = {}) {
  const id = uuid7();
  return JSON.stringify({
    uuid: id, displayName: job, job, maxTries: null, maxExceptions: null, failOnTimeout: false,
    backoff: null, timeout: null, retryUntil: null, data, createdAt: Math.floor(Date.now() / 1000),
    ...more, id, attempts: 0, delay: null,
  });
}

/** A payload signed for a queue, with the program's `signing_key`. */
export function signed(raw, queue, key) {
  const digest = createHmac("sha256", key).update(`qframe-signature-1\0${queue}\0${raw}`, "utf8");
  return `{"signature":"${digest.digest("hex")}",${raw.slice(1)}`;
}

/**
 * Pushes into Redis as Laravel does: `new RedisClient("redis://127.0.0.1:6379/0", {signingKey})`.
 * `prefix` is that of the connection. Without the checks of HTTP: use it where you know the class.
 */
export class RedisClient {
  constructor(url, { signingKey, prefix = "", patience = 30, timeout = 10 } = {}) {
    Object.assign(this, { url: new URL(url), signingKey, prefix, patience, timeout });
  }

  /**
   * Pushes a job and returns its id. It waits for a server that cannot be reached or does not take
   * writes. Throws `InDoubt` if the push was sent and not answered: there is no key, so whether to
   * push again is yours to decide.
   */
  async dispatch(job, data = {}, { queue = "default", delay = 0, more = {} } = {}) {
    let raw = payload(job, data, more);
    const { id } = JSON.parse(raw);
    if (this.signingKey) raw = signed(raw, queue, this.signingKey);
    const key = `${this.prefix}queues:${queue}`;
    const pushes = delay
      ? [["ZADD", `${key}:delayed`, String(Date.now() / 1000 + delay), raw]]
      : [["RPUSH", key, raw], ["RPUSH", `${key}:notify`, "1"]];
    const until = Date.now() + this.patience * 1000;
    for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
      try {
        await this.#transaction(pushes);
        return id;
      } catch (error) {
        if (error instanceof InDoubt || Date.now() + pause > until) throw error;
      }
      await sleep(pause);
    }
  }

  async #transaction(commands) {
    const { hostname, port, protocol, username, password, pathname } = this.url;
    const before = [];
    if (password) {
      const names = username ? [decodeURIComponent(username)] : [];
      before.push(["AUTH", ...names, decodeURIComponent(password)]);
    }
    if (pathname.length > 1) before.push(["SELECT", pathname.slice(1)]);
    const at = { host: hostname.replace(/^\[|\]$/g, ""), port: Number(port || 6379) };
    const socket = protocol === "rediss:" ? connectTls({ ...at, servername: at.host }) : connect(at);
    const replies = new Replies(socket, this.timeout);
    try {
      await replies.connected(protocol === "rediss:" ? "secureConnect" : "connect");
      const first = [...before, ["PING"]];
      socket.write(first.map(encoded).join(""));
      for (const _ of first) await replies.next();
      const all = [["MULTI"], ...commands, ["EXEC"]];
      socket.write(all.map(encoded).join(""));
      try {
        for (const _ of all) await replies.next(); // an error in any of them aborts the EXEC
      } catch (error) {
        throw error instanceof RedisError ? error : new InDoubt(`no answer: ${error.message}`);
      }
    } finally {
      socket.destroy();
    }
  }
}

class RedisError extends Error {}

function encoded(words) {
  const parts = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  return `*${words.length}\r\n${parts.join("")}`;
}

/** Reads the replies of a socket, one after the other. */
class Replies {
  #rest = Buffer.alloc(0);
  #wake = () => {};
  #ended = null;

  constructor(socket, seconds) {
    this.socket = socket;
    socket.setTimeout(seconds * 1000, () => socket.destroy(new Error("timed out")));
    socket.on("data", (part) => ((this.#rest = Buffer.concat([this.#rest, part])), this.#wake()));
    socket.on("error", (error) => this.#end(error));
    socket.on("close", () => this.#end(new Error("the connection was closed")));
  }

  #end(error) {
    this.#ended ??= error;
    this.#wake();
  }

  connected(event) {
    return new Promise((resolve, reject) => {
      this.#wake = () => this.#ended && reject(this.#ended);
      this.socket.once(event, resolve);
    });
  }

  /** The next reply; only its first line matters here, except that an array has so many more. */
  async next() {
    const line = await this.#line();
    if (line[0] === "-") throw new RedisError(line.slice(1));
    if (line === "*-1" || line === "_") throw new RedisError("the transaction was not executed");
    if (line[0] === "*") for (let n = Number(line.slice(1)); n > 0; n--) await this.next();
    return line;
  }

  async #line() {
    for (;;) {
      const end = this.#rest.indexOf("\r\n");
      if (end >= 0) {
        const line = this.#rest.subarray(0, end).toString();
        this.#rest = this.#rest.subarray(end + 2);
        return line;
      }
      if (this.#ended) throw this.#ended;
      await new Promise((resolve) => (this.#wake = resolve));
    }
  }
}
