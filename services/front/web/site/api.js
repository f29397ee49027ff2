// Calls of the kernel. The key and the token come after the # of the address, which browsers never send.

const STORED = ["key", "token"];
const listeners = new Set();

export class CallError extends Error {
  // `status` is the HTTP status; 0 if nothing answered.
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const session = {
  get key() { return localStorage.getItem("linckia-key") || ""; },
  get token() { return localStorage.getItem("linckia-token") || ""; },
  // Takes the page's address, what follows its #, or a token alone.
  signIn(text) {
    const given = text.trim().split("#").pop();
    const parts = given.split(".");
    const hasKey = /^[0-9a-f]{32}$/.test(parts[0]);
    store("key", hasKey ? parts[0] : this.key);
    const token = hasKey ? decodeURIComponent(parts.slice(1).join(".")) : given;
    if (token) store("token", token);
    changed();
  },
  signOut() {
    STORED.forEach((name) => store(name, ""));
    changed();
  },
  onChange(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

function store(name, value) {
  if (value) localStorage.setItem("linckia-" + name, value);
  else localStorage.removeItem("linckia-" + name);
}

function changed() {
  listeners.forEach((listener) => listener());
}

// Other tabs sign in and out too.
addEventListener("storage", changed);

if (/^#[0-9a-f]{32}/.test(location.hash)) {
  session.signIn(location.hash);
  history.replaceState(null, "", location.pathname + "#/today");
}

function headers(more) {
  const found = { ...more };
  if (session.token) found["Authorization"] = "Bearer " + session.token;
  return found;
}

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options, headers: headers(options.headers) });
  } catch {
    throw new CallError("The kernel does not answer. Is it running? Start it with `linckia serve`.", 0);
  }
  if (answer.ok) return answer;
  let message = "the kernel answered " + answer.status;
  try {
    const { error } = await answer.json();
    message = typeof error === "string" ? error : error.message || message;
  } catch { /* It is not JSON. */ }
  throw new CallError(message, answer.status);
}

const body = (value, more) =>
  ({ method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json", ...more } });

// Calls an operation as a client; returns its result.
export async function call(name, parameters = {}) {
  return (await traced(name, parameters)).result;
}

// The same, with the id of the call's trace.
export async function traced(name, parameters = {}) {
  const answer = await request("call/" + encodeURIComponent(name), body(parameters));
  return { result: await answer.json(), trace: answer.headers.get("linckia-trace") };
}

// Calls an operation that only the operator may call.
export async function operator(name, parameters = {}) {
  const answer = await request("operator/" + encodeURIComponent(name), body(parameters, { "Linckia-Key": session.key }));
  return answer.json();
}

// Calls an operation with its `dry_run`. With the key it is recorded nowhere as a change, and waits for no approval.
export const preview = (name, parameters) => (session.key ? operator : call)(name, { ...parameters, dry_run: true });

export async function operations() {
  return (await request("operations")).json();
}

export async function file(path) {
  return (await request("api/content?path=" + encodeURIComponent(path))).blob();
}

// What is known with the changes that the kernel sent: objects are merged, null removes a member.
function merged(known, changes) {
  const found = { ...known };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) delete found[name];
    else if (value && typeof value === "object" && !Array.isArray(value) && known[name]) found[name] = merged(known[name], value);
    else found[name] = value;
  }
  return found;
}

const listed = (known) => ({ ...known, services: Object.values(known.services) });

// The kernel does not repeat how long something has been up: it grows with the clock.
function aged(one, seconds) {
  return one.uptime_s == null ? one : { ...one, uptime_s: one.uptime_s + seconds };
}

// Reads a stream of server-sent events until the returned function is called, and connects again when it ends. `on` gets
// the name and the data of each event, `failed` errors; a client that may not read it is not connected again.
function stream(path, options, on, failed) {
  let ended = false;
  let reading = new AbortController();
  let delay = 250;

  async function follow() {
    while (!ended) {
      try {
        await read();
        delay = 250;
      } catch (error) {
        if (ended) return;
        failed({ error: error.message, status: error.status ?? 0 });
        if (error.status >= 400 && error.status < 500) return;
        delay = Math.min(delay * 2, 4000);
      }
      await new Promise((resolve) => setTimeout(resolve, delay));
    }
  }

  async function read() {
    reading = new AbortController();
    const answer = await request(path, { ...options, signal: reading.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new CallError("The connection to the kernel ended; trying again.", 0);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const found = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s)).filter(([name]) => name));
        if (ended || !found.data) continue;
        delay = 250;
        on(found.event, JSON.parse(found.data));
      }
    }
  }

  follow();
  return () => {
    ended = true;
    reading.abort();
  };
}

// Follows the live figures until the returned function is called. `on` gets {overview} or {error, status}.
export function live(on) {
  let known = null;
  return stream("live", { headers: { "Linckia-Key": session.key } }, (name, data) => {
    if (name === "overview") known = data;
    else if (name === "changes") {
      const seconds = data.at - known.at;
      const grown = { ...aged(known, seconds), services: Object.fromEntries(Object.entries(known.services).map(([service, each]) => [service, aged(each, seconds)])) };
      known = { ...merged(grown, data.changes), at: data.at };
    } else return on({ error: data.error, status: 0 });
    return on({ overview: listed(known) });
  }, on);
}

// Follows what happens from now on until the returned function is called, or `on` returns false. It costs nothing while
// nothing happens.
export function follow(chosen, on) {
  const stop = stream("v1/events?" + new URLSearchParams(chosen), {}, (name, data) => { if (name !== "failure" && on(data) === false) stop(); }, () => {});
  return stop;
}
