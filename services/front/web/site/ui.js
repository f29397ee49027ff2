// Components and formats that the views share.
import { Fragment, html, useEffect, useId, useMemo, useRef, useState } from "./lib.js";

export const UNKNOWN = "–";

export function bytes(count) {
  if (count == null) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = Math.abs(count);
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return (count < 0 ? "−" : "") + value.toFixed(value < 10 && unit ? 1 : 0) + " " + units[unit];
}

export function span(seconds) {
  if (seconds == null) return UNKNOWN;
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= 2 * length) return Math.round(seconds / length) + " " + unit;
  return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
}

export function ms(value) {
  if (value == null) return UNKNOWN;
  if (value >= 10_000) return span(value / 1000);
  return value >= 100 ? value.toFixed(0) + " ms" : value.toFixed(value < 10 ? 2 : 1) + " ms";
}

export const number = (value, digits = 0) =>
  value == null ? UNKNOWN : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
export const percent = (share) => (share == null ? UNKNOWN : (share * 100).toFixed(share < 0.1 ? 1 : 0) + " %");
export const plural = (count, one, many = one + (one.endsWith("s") ? "es" : "s")) => number(count) + " " + (count === 1 ? one : many);

export function Time({ at }) {
  if (!at) return UNKNOWN;
  const date = new Date(typeof at === "number" ? at * 1000 : at);
  if (Number.isNaN(date.getTime())) return String(at);
  const today = date.toDateString() === new Date().toDateString();
  const text = today ? date.toLocaleTimeString() : date.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  return html`<time datetime=${date.toISOString()} title=${date.toLocaleString()}>${text}</time>`;
}

// The state of asynchronous work: {value, error, busy, again}. It runs again when `inputs` change.
export function useWork(work, inputs) {
  const [state, set] = useState({ busy: true });
  const [round, next] = useState(0);
  useEffect(() => {
    let current = true;
    set((before) => ({ ...before, busy: true }));
    Promise.resolve()
      .then(work)
      .then((value) => current && set({ value, busy: false }))
      .catch((error) => current && set((before) => ({ value: before.value, error, busy: false })));
    return () => { current = false; };
  }, [...inputs, round]);
  return { ...state, again: () => next((count) => count + 1) };
}

// Shows what `work` (of `useWork`) returned, or why there is nothing.
export function Loaded({ work, children }) {
  return html`
    ${work.error && html`<${Failure} error=${work.error} again=${work.again} />`}
    ${work.value === undefined ? !work.error && html`<p class="quiet" role="status">Loading…</p>` : children(work.value)}`;
}

export function Failure({ error, again }) {
  return html`<p class="error" role="alert">${error.message}${" "}
    ${again && html`<button onClick=${again}>Try again</button>`}</p>`;
}

export const Nothing = ({ children }) => html`<p class="quiet">${children}</p>`;

// A table that sorts by its headers. A column is {key, title, value, cell, right, wide}; `value` sorts, `cell` shows. If the
// rows are a part of more, `onSort` has them sorted elsewhere, by the column and descending or not, and those that are
// `unsorted` cannot be.
export function Table({ caption, columns, rows, keyOf, sort = null, descending = false, selected, onSort, empty = "There are none." }) {
  const [own, setOrder] = useState({ key: sort, descending });
  const order = onSort ? { key: sort, descending } : own;
  const column = columns.find(({ key }) => key === order.key);
  const sorted = useMemo(() => {
    if (!column || onSort) return rows;
    const valueOf = column.value || ((row) => row[column.key]);
    const found = [...rows].sort((one, other) => compare(valueOf(one), valueOf(other)));
    return order.descending ? found.reverse() : found;
  }, [rows, order.key, order.descending, columns]);
  if (!rows.length) return html`<${Nothing}>${empty}<//>`;
  const by = (key) => (onSort || ((...given) => setOrder({ key: given[0], descending: given[1] })))(key, order.key === key ? !order.descending : false);
  return html`<div class="wide" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="skip">${caption}</caption>
    <thead><tr>${columns.map(({ key, title, right, wide, label, unsorted }) => html`
      <th key=${key} scope="col" class=${classes(right && "right", wide && "narrow-hide")}
        aria-sort=${order.key === key ? (order.descending ? "descending" : "ascending") : undefined}>
        ${title && unsorted ? title : title ? html`<button onClick=${() => by(key)}>${title}${order.key === key ? (order.descending ? " ↓" : " ↑") : ""}</button>`
          : html`<span class="skip">${label || "Actions"}</span>`}</th>`)}</tr></thead>
    <tbody>${sorted.map((row) => html`
      <tr key=${keyOf(row)} class=${selected && selected(row) ? "selected" : undefined}>${columns.map((each) => html`
        <td key=${each.key} class=${classes(each.right && "right nowrap", each.wide && "narrow-hide")}>
          ${each.cell ? each.cell(row) : row[each.key] ?? ""}</td>`)}</tr>`)}</tbody></table></div>`;
}

function compare(one, other) {
  if (one == null || other == null) return (one == null) - (other == null);
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
}

export const classes = (...names) => names.filter(Boolean).join(" ") || undefined;

export function Tabs({ label, tabs, current }) {
  return html`<nav class="tabs" aria-label=${label}>${tabs.map(([href, title]) => html`
    <a key=${href} href=${href} aria-current=${href === current ? "page" : undefined}>${title}</a>`)}</nav>`;
}

// A button for work: it is disabled meanwhile, and a failure is shown beside it. With `confirm`, it asks first;
// `keep` is the answer that does nothing.
export function Action({ children, label, act, confirm, kind, keep = "Cancel" }) {
  const [state, set] = useState({});
  const dialog = useRef();
  async function run() {
    set({ busy: true });
    try {
      const said = await act();
      set({ said: typeof said === "string" ? said : "" });
    } catch (error) {
      set({ error });
    }
  }
  const title = useId();
  return html`<span>
    <button class=${kind} aria-label=${label} disabled=${state.busy} onClick=${() => (confirm ? dialog.current.showModal() : run())}>
      ${children}</button>
    ${state.said && html`${" "}<span class="quiet" role="status">${state.said}</span>`}
    ${state.error && html`${" "}<span class="error" role="alert">${state.error.message}</span>`}
    ${confirm && html`<dialog ref=${dialog} aria-labelledby=${title}>
      <p id=${title}>${confirm}</p>
      <form method="dialog" class="row">
        <button class="main" value="yes" onClick=${run}>${children}</button>
        <button value="no" autofocus>${keep}</button>
      </form></dialog>`}</span>`;
}

export const Json = ({ value }) => html`<pre tabindex="0" aria-label="JSON">${typeof value === "string" ? value : JSON.stringify(value, null, 2)}</pre>`;

export function Facts({ facts }) {
  const shown = Object.entries(facts).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return html`<dl class="facts">${shown.map(([name, value]) => html`<${Fragment} key=${name}><dt>${name}</dt><dd>${value}</dd><//>`)}</dl>`;
}

const STOP_WORDS = new Set("a an and are as at be by for from how in is it of on or that the this to was what when where which who with".split(" "));

// The text with the words of the query marked.
export function Highlighted({ text, query }) {
  const words = (query.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || []).filter((word) => word.length > 1 && !STOP_WORDS.has(word));
  if (!words.length) return text;
  // Endings are left off, so that "regrows" marks "regrow" too.
  const stems = words.map((word) => word.replace(/(?<=.{3})(ing|ed|es|s)$/u, ""));
  const pattern = new RegExp(`(${stems.join("|")})`, "giu");
  return text.split(pattern).map((part, index) => (index % 2 ? html`<mark>${part}</mark>` : part));
}

// A text field that reports its value when the user submits the form.
export function SearchForm({ label, value, onSearch, button = "Search", children }) {
  const [text, set] = useState(value || "");
  useEffect(() => set(value || ""), [value]);
  return html`<form class="row" role="search" aria-label=${label} onSubmit=${(event) => { event.preventDefault(); onSearch(text); }}>
    <input class="grow" type="search" aria-label=${label} placeholder=${label} value=${text} onInput=${(event) => set(event.target.value)} />
    ${children}<button class="main">${button}</button></form>`;
}

export function Select({ label, value, options, onChange }) {
  return html`<label>${label} <select value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map((each) => { const [id, title] = Array.isArray(each) ? each : [each, each]; return html`<option key=${id} value=${id} selected=${id === value}>${title}</option>`; })}
  </select></label>`;
}

const STATES = { ready: "good", resting: "quiet", stopped: "quiet", failed: "bad", backoff: "bad", starting: "busy", waiting: "busy", draining: "busy" };
export const State = ({ state }) => html`<span class=${STATES[state]}>${state}</span>`;

// Parameters kept in the address: `#/view/part?name=value`.
export function go(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value != null)).toString();
  location.hash = path + (query ? "?" + query : "");
}

// The heading of a view; it takes the focus when the view changes.
export const Title = ({ children }) => html`<h1 tabindex="-1">${children}</h1>`;
