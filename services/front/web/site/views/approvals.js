// Calls of clients that wait for a person, and the latest decisions.
import { html, useEffect, useState } from "../lib.js";
import { operator } from "../api.js";
import { Action, Facts, Failure, Nothing, Table, Time, Title, bytes, span } from "../ui.js";

export const title = "Approvals";
export const order = 85;

const INTERVAL_MS = 1500;
const nameOf = (each) => each.tool || each.operation;

export function View() {
  const { list, error, again } = useApprovals();
  return html`<${Title}>Approvals<//>
    ${error && html`<${Failure} error=${error} again=${again} />`}
    ${!list && !error && html`<p class="quiet" role="status">Loading…</p>`}
    ${list && html`<h2>Waiting</h2>
      ${list.pending.map((each) => html`<${Pending} key=${each.id} call=${each} onDone=${again} />`)}
      ${!list.pending.length && html`<${Nothing}>No call waits. <code>[approvals]</code> in the settings says which calls have to.<//>`}
      <h2>Decided</h2><${Recent} rows=${list.recent} />`}`;
}

// The list, read again in an interval and after each decision.
function useApprovals() {
  const [state, set] = useState({});
  const [round, next] = useState(0);
  useEffect(() => {
    let timer;
    let ended = false;
    async function read() {
      try {
        const list = await operator("approval_list", { recent: 50 });
        if (!ended) set({ list });
      } catch (error) {
        if (ended) return;
        // The operation is missing if the settings choose nothing.
        if (/unknown operation/.test(error.message)) return set({ list: { pending: [], recent: [] } });
        set((before) => ({ list: before.list, error }));
        if (error.status === 401 || error.status === 403) return;
      }
      if (!ended) timer = setTimeout(read, INTERVAL_MS);
    }
    read();
    return () => { ended = true; clearTimeout(timer); };
  }, [round]);
  return { ...state, again: () => next((count) => count + 1) };
}

function Pending({ call, onDone }) {
  const [reason, setReason] = useState("");
  const decide = (approve) => async () => {
    await operator("approval_decide", { id: call.id, approve, reason, who: "operator's page", operation: nameOf(call), asker_name: call.asker });
    onDone();
  };
  const name = nameOf(call);
  return html`<section class="card" aria-label=${`${name} of ${call.asker}`}>
    <h3><code>${name}</code></h3>
    <${Facts} facts=${{ asker: call.asker, "part of": call.source, about: call.target, asked: html`<${Time} at=${call.asked_at} />`,
      "time left": `${span(call.left_s)}, then ${call.on_time_out === "allow" ? "allowed" : "denied"}`,
      state: call.waiting ? "the call waits" : "the call no longer waits; a repetition finds the decision" }} />
    <pre tabindex="0" aria-label=${`Parameters of ${name}, ${bytes(call.size)}`}>${call.preview}</pre>
    <div class="row">
      <${Action} kind="main" label=${`Approve ${name} of ${call.asker}`} act=${decide(true)}>Approve<//>
      <${Action} label=${`Deny ${name} of ${call.asker}`} act=${decide(false)}>Deny<//>
      <label>Reason <input value=${reason} maxlength="2000" onInput=${(event) => setReason(event.target.value)} /></label>
    </div></section>`;
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
