// What several views show of a service: its figures over time, its log, and the buttons that control it.
import { html, useEffect, useRef, useState } from "./lib.js";
import { operator } from "./api.js";
import { Chart } from "./charts.js";
import { Action, Failure, Nothing, Select, bytes, ms, number, percent, useWork } from "./ui.js";

export const VERBS = { restart: "Restart", start: "Start", stop: "Stop" };
export const control = (name, what) => async () => (await operator(`kernel_${what}`, { service: name })).message;

export function Controls({ name }) {
  return html`${Object.entries(VERBS).map(([what, verb]) => html`
    <${Action} key=${what} label=${`${verb} ${name}`} confirm=${`${verb} ${name}?`} act=${control(name, what)}>${verb}<//>`)}`;
}

export const SPANS = [["hour", "Last hour"], ["day", "Last day"], ["month", "Last month"]];
const EVERY_S = { hour: 15, day: 300, month: 1800 };
const POINTS = 240;

// The figures of all services, or of one. Of the last hour, only what is new is asked for again.
export function useHistory({ span = "hour", service = "", figures = [] } = {}) {
  const [found, set] = useState({ span });
  const [error, fail] = useState(null);
  useEffect(() => {
    let current = true;
    let known = null;
    async function read() {
      const after = span === "hour" && known?.at.length ? known.at.at(-1) : 0;
      try {
        const more = await operator("kernel_history", { span, service, figures, after, points: POINTS });
        if (!current) return;
        known = after ? extended(known, more) : more;
        set({ span, history: known });
        fail(null);
      } catch (failure) {
        if (current) fail(failure);
      }
    }
    read();
    const timer = setInterval(() => document.hidden || read(), EVERY_S[span] * 1000);
    return () => { current = false; clearInterval(timer); };
  }, [span, service, figures.join()]);
  return { history: found.span === span ? found.history : undefined, error };
}

// The known figures with later ones, without those that are more than an hour old.
function extended(known, more) {
  const at = [...known.at, ...more.at];
  const from = at.findIndex((each) => each >= at.at(-1) - 3600);
  const names = new Set([...Object.keys(known.services), ...Object.keys(more.services)]);
  const none = (times) => times.map(() => null);
  const services = {};
  for (const name of names) {
    const [old, late] = [known.services[name], more.services[name]];
    services[name] = Object.fromEntries(Object.keys(old || late).map((figure) => [figure,
      [...(old?.[figure] || none(known.at)), ...(late?.[figure] || none(more.at))].slice(from)]));
  }
  return { at: at.slice(from), services };
}

export function Charts({ name, span, onSpan }) {
  const { history, error } = useHistory({ span, service: name, figures: ["cpu", "memory_bytes", "calls_per_s", "p99_ms"] });
  const series = history?.services[name];
  return html`<h2>Figures</h2>
    <div class="row"><${Select} label="Time" value=${span} options=${SPANS} onChange=${onSpan} /></div>
    ${error && html`<${Failure} error=${error} />`}
    ${!series ? html`<${Nothing}>${span === "hour" ? "The first figures come 15 seconds after the start." : "There are none of this time yet."}<//>` : html`<div class="columns">
      <${Chart} at=${history.at} values=${series.cpu} label="CPU" format=${percent} />
      <${Chart} at=${history.at} values=${series.memory_bytes} label="Resident memory" format=${bytes} />
      <${Chart} at=${history.at} values=${series.calls_per_s} label="Calls per second" format=${(value) => number(value, 1)} />
      <${Chart} at=${history.at} values=${series.p99_ms} label="p99" format=${ms} /></div>`}`;
}

const LOG_S = 3;
const MOST_LINES = 5000;

// The end of a log; while it is shown, only new lines are asked for.
function useLog(name, count) {
  const [log, set] = useState({ lines: [] });
  useEffect(() => {
    let current = true;
    let known = { lines: [], position: -1 };
    async function read() {
      try {
        const more = await operator("kernel_log_after", { service: name, lines: count, position: known.position });
        if (!current || (more.position === known.position && !more.again && !known.error)) return;
        known = { ...more, lines: (more.again ? more.lines : [...known.lines, ...more.lines]).slice(-Math.max(count, MOST_LINES)) };
        set(known);
      } catch (error) {
        if (!current) return;
        known = { ...known, error };
        set(known);
      }
    }
    read();
    const timer = setInterval(() => document.hidden || read(), LOG_S * 1000);
    return () => { current = false; clearInterval(timer); };
  }, [name, count]);
  return log;
}

export function Log({ name }) {
  const [lines, setLines] = useState(200);
  const [level, setLevel] = useState("all");
  const [text, setText] = useState("");
  const log = useLog(name, lines);
  const box = useRef();
  const follows = useRef(true);
  useEffect(() => {
    // The newest line stays in view, unless the user has scrolled up.
    if (box.current && follows.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log, level, text]);
  const fits = (line) => (level === "all" || line.toLowerCase().includes(level)) && line.toLowerCase().includes(text.toLowerCase());
  const scrolled = ({ target }) => { follows.current = target.scrollHeight - target.scrollTop - target.clientHeight < 30; };
  return html`<div class="row"><${Select} label="Level" value=${level} options=${["all", "error", "warning", "info", "debug"]} onChange=${setLevel} />
      <input class="grow" type="search" aria-label="Text or trace" placeholder="Text or trace" value=${text} onInput=${(event) => setText(event.target.value)} />
      <${Select} label="Lines" value=${String(lines)} options=${["200", "1000", "5000"]} onChange=${(value) => setLines(Number(value))} /></div>
    ${log.error && html`<${Failure} error=${log.error} />`}
    ${log.path === undefined ? !log.error && html`<p class="quiet" role="status">Loading…</p>` : html`<p class="quiet"><code>${log.path}</code></p>
      <pre tabindex="0" aria-label="Log" ref=${box} onScroll=${scrolled}>${log.lines.filter(fits).map(inWords).join("\n") || (log.lines.length ? "No line fits." : "It has written nothing.")}</pre>`}`;
}

// A logged line is JSON; everything else that a process writes is shown as it is.
function inWords(line) {
  if (!line.startsWith("{")) return line;
  try {
    const { time, level, logger, message, trace, error } = JSON.parse(line);
    if (!time || !level || message == null) return line;
    const at = new Date(time).toLocaleTimeString();
    return `${at} ${level.padEnd(8)}${(logger || "").replace(/^linckia\./, "")}: ${message}${trace ? ` (trace ${trace})` : ""}${error ? `\n${error}` : ""}`;
  } catch {
    return line;
  }
}
