// Calls of clients that wait for a person, and the latest decisions.
import { html, useEffect, useRef, useState } from "../lib.js";
import { operator } from "../api.js";
import { useLive } from "../app.js";
import { Pending, nameOf } from "../approvals/pending.js";
import { NoticesButton, waitingIn } from "../notices.js";
import { Loaded, Nothing, Table, Time, Title, useWork } from "../ui.js";

export const title = "Approvals";
export const order = 85;

export function View() {
  const { overview } = useLive();
  // The live figures say when other calls wait, so the list is read then, and after each decision.
  const { count, latest } = waitingIn(overview);
  const work = useWork(list, [count, latest]);
  return html`<${Title}>Approvals<//>
    <p><${NoticesButton} /></p>
    <${Loaded} work=${work}>${(found) => html`<${Waiting} calls=${found.pending} again=${work.again} />
      <h2>Decided</h2><${Recent} rows=${found.recent} />`}<//>`;
}

async function list() {
  try {
    return await operator("approval_list", { recent: 50 });
  } catch (error) {
    // The operation is missing if the settings choose nothing.
    if (/unknown operation/.test(error.message)) return { pending: [], recent: [] };
    throw error;
  }
}

function Waiting({ calls, again }) {
  const place = useRef();
  const [current, set] = useState("");
  const shown = calls.some((each) => each.id === current) ? current : calls[0]?.id;
  const cards = () => [...place.current.querySelectorAll("[data-call]")];
  const move = (event) => {
    const step = { j: 1, k: -1 }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey || event.target.closest("input, textarea, select")) return;
    const every = cards();
    const at = every.findIndex((each) => each.contains(document.activeElement));
    event.preventDefault();
    every[Math.min(every.length - 1, Math.max(0, at + step))]?.focus();
  };
  // After a decision, the focus goes on to the next call, or back to the heading.
  const next = useRef(null);
  const done = (id) => {
    const every = cards();
    const at = every.findIndex((each) => each.dataset.call === id);
    next.current = every[at]?.contains(document.activeElement) ? (every[at + 1] || every[at - 1])?.dataset.call || "heading" : null;
    again();
  };
  useEffect(() => {
    const wanted = next.current;
    if (!wanted) return;
    next.current = null;
    (cards().find((each) => each.dataset.call === wanted) || place.current.querySelector("h2")).focus();
  }, [calls]);
  return html`<div ref=${place} onKeyDown=${move}><h2 tabindex="-1">Waiting</h2>
    ${calls.length > 0 && html`<p class="quiet">Keys, once a call has the focus: <kbd>a</kbd> approves it, <kbd>d</kbd> denies it, <kbd>j</kbd> and${" "}
      <kbd>k</kbd> go to the next and the previous one. An approval is given to the call and its parameters, whatever the files contain when it is carried out.</p>`}
    ${calls.map((each) => html`<${Pending} key=${each.id} call=${each} isCurrent=${each.id === shown} onFocus=${() => set(each.id)} onDone=${done} />`)}
    ${!calls.length && html`<${Nothing}>No call waits. <code>[approvals]</code> in the settings says which calls have to.<//>`}</div>`;
}

const STATES = { approved: "good", denied: "bad", expired: "quiet" };

function Recent({ rows }) {
  return html`<${Table} caption="Decided calls" rows=${rows} keyOf=${(row) => row.id} empty="None yet." columns=${[
    { key: "decided_at", title: "When", cell: (row) => html`<${Time} at=${row.decided_at} />` },
    { key: "operation", title: "Operation", value: nameOf, cell: (row) => html`<code>${nameOf(row)}</code>` },
    { key: "asker", title: "Asker" },
    { key: "target", title: "About", wide: true },
    { key: "state", title: "Decision", cell: (row) => html`<span class=${STATES[row.state]}>${row.state}</span>` },
    { key: "by", title: "By" },
    { key: "reason", title: "Reason", wide: true }]} />`;
}
