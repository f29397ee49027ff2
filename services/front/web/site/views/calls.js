// Calls that have ended, the waterfall of one trace, and the audit log.
import { html, useRef, useState } from "../lib.js";
import { operator } from "../api.js";
import { useLive } from "../app.js";
import { Waterfall } from "../charts.js";
import { Loaded, Nothing, Select, Table, Tabs, Time, Title, go, ms, number, useWork } from "../ui.js";

export const title = "Calls";
export const order = 20;

const TABS = [["#/calls", "Recent"], ["#/calls/slow", "Slow"], ["#/calls/failed", "Failed"], ["#/calls/audit", "Audit log"]];

export function View({ parts, parameters }) {
  const [what = "recent"] = parts;
  if (/^[0-9a-f]{32}$/.test(what)) return html`<${Trace} trace=${what} />`;
  return html`<${Title}>Calls<//>
    <${Tabs} label="Kinds of calls" tabs=${TABS} current=${what === "recent" ? "#/calls" : `#/calls/${what}`} />
    ${what === "audit" ? html`<${Audit} ...${parameters} />` : html`<${Calls} key=${what} kind=${what} ...${parameters} />`}`;
}

const COLUMNS = [
  { key: "at", title: "Time", cell: (row) => html`<${Time} at=${row.at} />` },
  { key: "operation", title: "Operation", cell: (row) => html`<a href=${`#/calls/${row.trace}`}>${row.operation}</a>` },
  { key: "service", title: "Service", wide: true },
  { key: "who", title: "Client" },
  { key: "target", title: "About", wide: true, cell: (row) => html`<span class="quiet break">${row.target}</span>` },
  { key: "queued_ms", title: "Queued", right: true, wide: true, cell: (row) => ms(row.queued_ms) },
  { key: "duration_ms", title: "Time taken", right: true, cell: (row) => ms(row.duration_ms) },
  { key: "outcome", title: "Outcome", cell: (row) => html`<span class=${row.outcome === "ok" ? "good" : "bad"}>${row.outcome}</span>
    ${row.message && html`${" "}<span class="quiet break">${row.message}</span>`}` },
];

const MOST = 200;

// The latest calls; once they are known, only later ones are asked for.
function useCalls(asked, round) {
  const known = useRef({});
  const identity = JSON.stringify(asked);
  return useWork(async () => {
    const before = known.current.identity === identity ? known.current : { calls: [], last: 0 };
    const { calls, last } = await operator("kernel_calls", { ...asked, after: before.last, limit: MOST });
    // After a restart of the kernel, numbers begin anew.
    if (last < before.last) known.current = { identity, ...(await operator("kernel_calls", { ...asked, limit: MOST })) };
    else known.current = { identity, last, calls: [...calls, ...before.calls].slice(0, MOST) };
    return known.current;
  }, [identity, round]);
}

function Calls({ kind, operation = "", who = "", service = "", all = "" }) {
  const { overview } = useLive();
  const [paused, pause] = useState(false);
  // New calls appear with the live figures, which count the calls of clients.
  const counted = (overview?.services || []).reduce((sum, each) => sum + each.calls, 0);
  const round = paused ? "" : all ? Math.floor((overview?.at ?? 0) / 5) : `${counted}.${overview?.pid}`;
  const work = useCalls({ kind, operation, who, service, of_clients: !all }, round);
  const path = kind === "recent" ? "/calls" : `/calls/${kind}`;
  const set = (name) => (value) => go(path, { operation, who, service, all, [name]: value });
  const names = (of, chosen) =>
    [["", "all"], ...[...new Set([...(work.value?.calls || []).map(of), chosen])].filter(Boolean).sort().map((each) => [each, each])];
  return html`<div class="row">
      <${Select} label="Calls" value=${all} options=${[["", "of clients"], ["yes", "all, also of services"]]} onChange=${set("all")} />
      <${Select} label="Operation" value=${operation} options=${names((call) => call.operation, operation)} onChange=${set("operation")} />
      <${Select} label="Service" value=${service} options=${names((call) => call.service, service)} onChange=${set("service")} />
      <${Select} label="Client" value=${who} options=${names((call) => call.who, who)} onChange=${set("who")} />
      <label><input type="checkbox" checked=${paused} onChange=${() => pause(!paused)} /> Pause</label></div>
    <${Loaded} work=${work}>${({ calls, last }) => html`<p class="quiet">${calls.length} shown; ${number(last)} recorded since the kernel started.</p>
      <${Table} caption="Calls" rows=${calls} keyOf=${(row) => row.number} empty=${all ? "None." : "No client has called. Choose all to see what services ask of each other."} columns=${COLUMNS} />`}<//>`;
}

function Trace({ trace }) {
  const work = useWork(() => operator("kernel_calls", { trace, limit: 1000 }), [trace]);
  return html`<p><a href="#/calls">Calls</a></p><${Title}>Trace<//>
    <p class="quiet"><code>${trace}</code></p>
    <${Loaded} work=${work}>${({ calls }) => (calls.length ? html`<${Waterfall} calls=${calls} />
      <h2>Calls</h2><${Table} caption="Calls of this trace" rows=${calls} keyOf=${(row) => row.number} columns=${COLUMNS} />`
      : html`<${Nothing}>No call of this trace is kept any more: the kernel keeps the last 5,000.<//>`)}<//>`;
}

function Audit({ who = "", operation = "", failed = "" }) {
  const work = useWork(() => operator("kernel_audit", { who, operation, failed: failed === "yes", limit: 300 }), [who, operation, failed]);
  const set = (more) => go("/calls/audit", { who, operation, failed, ...more });
  return html`<form class="row" onSubmit=${(event) => {
      event.preventDefault();
      const data = new FormData(event.target);
      set({ who: data.get("who"), operation: data.get("operation") });
    }}>
      <label>Who <input name="who" value=${who} placeholder="token, stdio, operator" /></label>
      <label>Operation <input name="operation" value=${operation} placeholder="yaml_*" /></label>
      <label><input type="checkbox" checked=${failed === "yes"} onChange=${(event) => set({ failed: event.target.checked ? "yes" : "" })} /> Only failed or refused</label>
      <button>Filter</button></form>
    <${Loaded} work=${work}>${({ entries }) => html`<${Table} caption="Audit log" rows=${entries} keyOf=${(row) => row.at + row.operation + row.trace} empty="No entry fits." columns=${[
      { key: "at", title: "Time", cell: (row) => html`<${Time} at=${row.at} />` },
      { key: "who", title: "Who", cell: (row) => row.who + (row.peer && row.peer !== row.who ? ` from ${row.peer}` : "") },
      { key: "operation", title: "Operation", cell: (row) => (row.trace ? html`<a href=${`#/calls/${row.trace}`}>${row.operation}</a>` : row.operation) },
      { key: "target", title: "About", cell: (row) => row.target || "" },
      { key: "outcome", title: "Outcome", cell: (row) => html`<span class=${!row.outcome || row.outcome === "ok" ? "good" : "bad"}>${row.outcome || "ok"}</span>${" "}
        ${row.message || ""}${row.count > 1 ? ` (${row.count} times)` : ""}` },
    ]} />`}<//>`;
}
