// The settings: each with its value, where that comes from, what it does, and how to change it.
import { html, useId, useState } from "./lib.js";
import { operator } from "./api.js";
import { Action, Loaded, Nothing, Select, go, plural, useWork } from "./ui.js";
import { control } from "./watching.js";

const written = (value) => (value === null || value === undefined || value === "" ? "none" : Array.isArray(value) && !value.length ? "none"
  : Array.isArray(value) && value.every((each) => typeof each === "string") ? value.join(", ") : typeof value === "object" ? JSON.stringify(value) : String(value));

export function Settings({ words = "", table = "", changed = "" }) {
  const work = useWork(() => operator("kernel_settings"), []);
  const [now, setNow] = useState({});
  const set = (more) => go("/admin/settings", { words, table, changed, ...more });
  return html`<${Loaded} work=${work}>${({ settings }) => {
    const all = settings.map((each) => now[each.name] || each);
    const tables = [...new Set(all.map((each) => each.name.split(".").slice(0, -1).join(".")))];
    const rows = all.filter((each) => (!table || each.name.startsWith(`${table}.`)) && (!changed || each.source !== "default")
      && words.toLowerCase().split(/\s+/).every((word) => `${each.name} ${each.text}`.toLowerCase().includes(word)));
    return html`<div class="row">
        <input class="grow" type="search" aria-label="Words" placeholder="Words of a setting" value=${words} onInput=${(event) => set({ words: event.target.value })} />
        <${Select} label="Table" value=${table} options=${[["", "all"], ...tables.filter(Boolean).map((each) => [each, `[${each}]`])]} onChange=${(value) => set({ table: value })} />
        <label><input type="checkbox" checked=${changed === "yes"} onChange=${(event) => set({ changed: event.target.checked ? "yes" : "" })} /> Only those that are set</label></div>
      <p class="quiet">${plural(rows.length, "setting")}. Those of single mounted servers are in <code>[mcp.NAME]</code> of the file.</p>
      ${rows.length ? html`<ul class="plain">${rows.map((each) => html`<${Setting} key=${each.name} one=${each} onChange=${(one) => setNow((before) => ({ ...before, [one.name]: one }))} />`)}</ul>`
        : html`<${Nothing}>No setting fits.<//>`}`;
  }}<//>`;
}

const source = ({ source: kind, where, variable }) => (kind === "default" ? `the default${variable ? `; ${variable} can set it` : ""}` : `${kind === "file" ? "the file" : `the ${kind}`}${where ? `: ${where}` : ""}`);

function Setting({ one, onChange }) {
  const [open, setOpen] = useState(false);
  const [said, say] = useState(null);
  const isFixed = ["environment", "command line"].includes(one.source);
  return html`<li class="card"><h2><code class="break">${one.name}</code></h2>
    <p>${one.text}</p>
    <p><b class="break">${written(one.value)}</b> <span class="quiet break">from ${source(one)}</span></p>
    ${isFixed ? html`<p class="quiet">It is changed there; what the file says does not count.</p>`
      : !open && html`<p><button aria-label=${`Change ${one.name}`} onClick=${() => { setOpen(true); say(null); }}>Change</button></p>`}
    ${open && html`<${Editor} one=${one} onDone=${(changed) => { setOpen(false); if (changed) { onChange(changed); say(changed); } }} />`}
    ${said && html`<p role="status">Written. ${said.acts === "" ? "It acts at once." : said.acts === "kernel" ? html`It acts once Linckia has been restarted: <code>linckia stop</code>, then <code>linckia serve</code>.`
      : html`It acts once ${said.acts} has been restarted. <${Action} label=${`Restart ${said.acts}`} act=${control(said.acts, "restart")}>Restart ${said.acts}<//>`}</p>`}</li>`;
}

// Returns the value that a text means. Throws what is wrong with it.
function read({ kind }, text) {
  if (kind === "boolean") return text === "true";
  if (kind === "integer" || kind === "number") {
    if (text.trim() === "" || Number.isNaN(Number(text))) throw new Error("Write a number.");
    return Number(text);
  }
  if (kind === "strings") return text.split("\n").map((each) => each.trim()).filter(Boolean);
  if (kind === "mixed") return /^-?\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : text.trim();
  if (kind !== "json") return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`It is not JSON: ${error.message}`);
  }
}

const shown = ({ kind, value, is_secret: isSecret }) => (isSecret || value === null || value === undefined ? "" : kind === "strings" && Array.isArray(value) ? value.join("\n")
  : typeof value === "object" ? JSON.stringify(value) : String(value));

function Editor({ one, onDone }) {
  const [text, setText] = useState(shown(one));
  const [state, setState] = useState({});
  const id = useId();
  async function change(asked) {
    setState({ busy: true });
    try {
      onDone(await operator("kernel_set", { name: one.name, ...asked() }));
    } catch (error) {
      setState({ error });
    }
  }
  const common = { id, value: text, autofocus: true, ref: (element) => { if (element && !element.dataset.seen) { element.dataset.seen = "yes"; element.focus(); } },
    "aria-label": `Value of ${one.name}`, "aria-invalid": state.error ? "true" : undefined, "aria-describedby": state.error ? `${id}-error` : undefined, onInput: (event) => setText(event.target.value) };
  const options = one.kind === "boolean" ? ["true", "false"] : one.choices;
  return html`<form class="fields" onSubmit=${(event) => { event.preventDefault(); change(() => ({ value: read(one, text) })); }}>
    ${options?.length ? html`<select ...${common}>${options.map((each) => html`<option key=${each} value=${each} selected=${each === text}>${each}</option>`)}</select>`
      : ["strings", "json"].includes(one.kind) ? html`<textarea placeholder=${one.kind === "json" ? "JSON" : "one per line"} ...${common}></textarea>`
      : html`<input type=${one.is_secret ? "password" : "text"} autocomplete="off" inputmode=${["integer", "number"].includes(one.kind) ? "decimal" : undefined} ...${common} />`}
    ${state.error && html`<p class="error" role="alert" id=${`${id}-error`}>${state.error.message}</p>`}
    <div class="row"><button class="main" disabled=${state.busy}>Save</button>
      ${one.source === "file" && html`<button type="button" disabled=${state.busy} onClick=${() => change(() => ({ reset: true }))}>Back to the default (${written(one.default)})</button>`}
      <button type="button" onClick=${() => onDone(null)}>Cancel</button></div></form>`;
}
