// A call that waits: what it would change, and the buttons that decide.
import { html, useEffect, useRef, useState } from "../lib.js";
import { follow, operator } from "../api.js";
import { useLive } from "../app.js";
import { Diff } from "../diff.js";
import { Facts, Json, Time, bytes, span } from "../ui.js";
import { effectOf, fileOf, signature } from "./effect.js";

const FACT_CHARS = 300;

export const nameOf = (each) => each.tool || each.operation;

export function Pending({ call, isCurrent, onFocus, onDone }) {
  const roots = useLive().overview?.roots;
  const [reason, setReason] = useState("");
  const [state, set] = useState({});
  const card = useRef();
  const name = nameOf(call);
  const look = async () => {
    if (!call.waiting) return { notes: ["The call no longer waits, so only the beginning of its parameters is kept."] };
    return effectOf(call.id, roots);
  };
  useEffect(() => {
    let current = true;
    look().then((effect) => current && set({ effect }), (error) => current && set({ effect: { notes: [`What it would change cannot be shown: ${error.message}`] } }));
    return () => { current = false; };
  }, [call.id, call.waiting]);
  const path = fileOf(state.effect?.parameters);
  useEffect(() => {
    // One stream at a time: browsers open few connections.
    if (!isCurrent || !path) return;
    return follow({ kinds: "file", path }, () => { set((before) => ({ ...before, moved: true })); return false; });
  }, [isCurrent, path, state.effect]);

  async function decide(approve) {
    if (!state.effect || state.busy) return;
    set((before) => ({ ...before, busy: true, error: null }));
    try {
      if (approve && call.waiting) {
        const now = await look();
        if (signature(now) !== signature(state.effect)) return set({ effect: now, isNew: true });
      }
      await operator("approval_decide", { id: call.id, approve, reason, who: "operator's page", operation: name, asker_name: call.asker });
      onDone(call.id);
    } catch (error) {
      set((before) => ({ ...before, busy: false, error }));
    }
  }
  const again = async () => set({ effect: await look() });
  // One key decides only if the call itself has the focus, not something in it.
  const key = (event) => {
    if (event.target !== card.current || event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    if (event.key === "a" || event.key === "d") {
      event.preventDefault();
      decide(event.key === "a");
    }
  };
  const { effect } = state;
  return html`<div class="card pending" ref=${card} tabindex="0" role="group" data-call=${call.id} aria-keyshortcuts="a d j k"
    aria-label=${`${name} of ${call.asker}`} onFocusIn=${onFocus} onKeyDown=${key}>
    <h3><code>${name}</code></h3>
    <${Facts} facts=${{ asker: call.asker, "part of": call.source, about: call.target, asked: html`<${Time} at=${call.asked_at} />`,
      "time left": html`<${Left} call=${call} />`,
      state: call.waiting ? "the call waits" : "the call no longer waits; a repetition finds the decision" }} />
    <div role="status">${state.isNew && html`<p class="busy"><strong>Not approved:</strong> the file has changed since this was shown. Below is what the call would change now; read it, and approve again.</p>`}
      ${state.moved && !state.isNew && html`<p class="busy">${path} has changed since this was shown. <button onClick=${again}>Show it as it would be now</button></p>`}</div>
    ${!effect && html`<p class="quiet">Looking what it would change…</p>`}
    ${effect?.notes.map((each) => html`<p class="quiet" key=${each}>${each}</p>`)}
    ${effect?.diff && html`<${Diff} text=${effect.diff} label=${`What ${name} would change`} />`}
    ${effect?.rows?.length > 0 && html`<ul>${effect.rows.map((each, index) => html`<li key=${index}><code>${each.path}</code>${each.to && html` to <code>${each.to}</code>`} <span class="quiet">${each.status}</span></li>`)}</ul>`}
    ${effect?.parameters && effect.diff == null && !effect.rows && html`<${Facts} facts=${short(effect.parameters)} />`}
    <details><summary>All parameters, ${bytes(call.size)}</summary><${Json} value=${effect?.parameters ?? call.preview} /></details>
    <div class="row">
      <button class="main" aria-label=${`Approve ${name} of ${call.asker}`} disabled=${!effect || state.busy} onClick=${() => decide(true)}>Approve</button>
      <button aria-label=${`Deny ${name} of ${call.asker}`} disabled=${!effect || state.busy} onClick=${() => decide(false)}>Deny</button>
      <label>Reason <input value=${reason} maxlength="2000" onInput=${(event) => setReason(event.target.value)} /></label></div>
    ${state.error && html`<p class="error" role="alert">${state.error.message}</p>`}</div>`;
}

// Every parameter; long ones by their beginning, since all of them are shown whole below.
function short(parameters) {
  return Object.fromEntries(Object.entries(parameters).map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return [name, text.length > FACT_CHARS ? `${text.slice(0, FACT_CHARS)}… (${text.length} characters)` : text || "(empty)"];
  }));
}

function Left({ call }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  const left = Math.max(0, (new Date(call.expires_at).getTime() - Date.now()) / 1000);
  return `${span(left)}, then ${call.on_time_out === "allow" ? "allowed" : "denied"}`;
}
