// The supervision tree: what runs, how it does, what died, and the control of services.
import { html } from "../lib.js";
import { operator } from "../api.js";
import { useLive } from "../app.js";
import { Sparkline } from "../charts.js";
import { Definitions } from "../definitions.js";
import {
  Action, Facts, Json, Loaded, Nothing, Select, State, Table, Tabs, Time, Title, UNKNOWN, bytes, go, ms, number, percent, plural, span, useWork,
} from "../ui.js";
import { Charts, Controls, Log, SPANS, control, useHistory } from "../watching.js";

export const title = "System";
export const order = 10;

export function View({ parts, parameters: { span: time = "hour" } }) {
  return parts[0] ? html`<${Service} key=${parts[0]} name=${parts[0]} tab=${parts[1] || "overview"} time=${time} />` : html`<${Overview} time=${time} />`;
}

const memory = (row) => row.pss_bytes ?? row.rss_bytes;
const deaths = (row) => Object.values(row.deaths).reduce((sum, count) => sum + count, 0);

function note(row) {
  const parts = [row.reason, row.mode, row.info.activity];
  if (row.retry_in_s != null) parts.push(`next try in ${span(row.retry_in_s)}`);
  if (row.last_death) parts.push(`last death: ${row.last_death}`);
  return parts.filter(Boolean).join("; ");
}

const columns = (history, time) => [
  { key: "name", title: "Service", cell: (row) => html`<a href=${`#/system/${row.name}`}>${row.name}</a>
    ${row.mount && html`${" "}<span class="badge">mounted</span>`}` },
  { key: "state", title: "State", cell: (row) => html`<${State} state=${row.state} />` },
  { key: "memory", title: "Memory", right: true, value: memory, cell: (row) => bytes(memory(row)) },
  { key: "cpu", title: "CPU", right: true, cell: (row) => percent(row.cpu) },
  { key: "hour", title: `CPU, ${Object.fromEntries(SPANS)[time].toLowerCase()}`, wide: true, value: (row) => row.cpu, cell: (row) => html`<${Hour} history=${history} name=${row.name} />` },
  { key: "in_flight", title: "In flight", right: true, wide: true, cell: (row) => row.in_flight + (row.queued ? ` + ${row.queued} queued` : "") },
  { key: "calls_per_s", title: "Calls/s", right: true, wide: true, cell: (row) => number(row.calls_per_s, 1) },
  { key: "p50_ms", title: "p50", right: true, wide: true, cell: (row) => ms(row.p50_ms) },
  { key: "p99_ms", title: "p99", right: true, wide: true, cell: (row) => ms(row.p99_ms) },
  { key: "deaths", title: "Deaths", right: true, wide: true, value: deaths, cell: (row) => deaths(row) || "" },
  { key: "note", title: "Note", wide: true, value: note, cell: (row) => html`<span class="quiet">${note(row)}</span>` },
  { key: "act", cell: (row) => html`<${Action} label=${`Restart ${row.name}`} act=${control(row.name, "restart")}
      confirm=${`Restart ${row.name}? Calls in flight are finished first, and later ones wait.`}>Restart<//>` },
];

// Resting services take one line, which unfolds.
function Services({ services, history, time }) {
  const resting = services.filter((each) => each.state === "resting");
  const table = (caption, rows) => html`<${Table} caption=${caption} columns=${columns(history, time)} rows=${rows} keyOf=${(row) => row.name} empty="None runs." />`;
  return html`${table("Services", services.filter((each) => each.state !== "resting"))}
    ${resting.length > 0 && html`<details><summary>${number(resting.length)} resting: ${resting.map((each) => each.name).join(", ")}</summary>
      <p class="quiet">They have no process until the next call.</p>${table("Resting services", resting)}</details>`}`;
}

function Hour({ history, name }) {
  const series = history?.services[name];
  return series ? html`<${Sparkline} at=${history.at} values=${series.cpu} label=${`CPU of ${name}`} format=${percent} least=${0.1} />` : UNKNOWN;
}

function Overview({ time }) {
  const { overview, status } = useLive();
  const { history } = useHistory({ span: time, figures: ["cpu"] });
  if (!overview)
    return html`<${Title}>System<//>${status === 403 ? html`<${Nothing}>This view needs the address that <code>linckia status</code> shows.<//>`
      : html`<p class="quiet" role="status">Waiting for the kernel…</p>`}`;
  const services = overview.services;
  const own = services.filter((each) => each.name === each.service);
  const mounts = services.filter((each) => each.mount);
  const backlogs = services.flatMap((each) => Object.entries(each.backlogs).map(([work, state]) => ({ service: each.name, work, ...state })));
  const sum = (rows, of) => rows.reduce((total, each) => total + (of(each) || 0), 0);
  return html`<${Title}>System<//>
    <ul class="figures" aria-label="Totals">
      <li><b>${services.filter((each) => ["ready", "resting"].includes(each.state)).length} of ${services.length}</b>processes well</li>
      <li><b>${bytes(overview.total_pss_bytes)}</b>memory</li>
      <li><b>${percent(sum(services, (each) => each.cpu) + (overview.kernel_cpu || 0))}</b>of a core</li>
      <li><b>${number(sum(own, (each) => each.calls_per_s), 1)}</b>calls/s</li>
      <li><b>${sum(services, (each) => each.in_flight)}</b>in flight</li>
      <li><b>${number(sum(own, (each) => each.calls))}</b>calls</li>
      <li><b>${sum(services, deaths)}</b>deaths</li>
      <li><b>${overview.backup?.age_s != null ? span(overview.backup.age_s) : "none"}</b>since a backup</li>
    </ul>
    <p class="quiet">Linckia ${overview.version}, process ${overview.pid}, up ${span(overview.uptime_s)};
      ${" "}${plural(overview.clients, "client")} over stdio. Data: <code>${overview.data_dir}</code>. Roots: ${overview.roots.length
        ? overview.roots.map((root) => html`<code key=${root}>${root}</code>${overview.read_only_roots.includes(root) ? " (read only) " : " "}`) : "none"}</p>
    <div class="row"><${Select} label="Time of the charts" value=${time} options=${SPANS} onChange=${(value) => go("/system", { span: value })} /></div>
    <${Services} services=${services} history=${history} time=${time} />
    ${overview.cluster && html`<${Cluster} cluster=${overview.cluster} />`}
    ${backlogs.length > 0 && html`<h2>Background work</h2><${Table} caption="Background work" keyOf=${(row) => row.service + row.work} rows=${backlogs} columns=${[
      { key: "service", title: "Service" }, { key: "work", title: "Work" },
      { key: "done", title: "Done", right: true, cell: (row) => `${number(row.done)} of ${number(row.total)}` },
      { key: "share", title: "Progress", cell: (row) => html`<progress max=${row.total || 1} value=${row.done} aria-label=${`${row.work} of ${row.service}`}></progress>` },
      { key: "per_s", title: "Rate", right: true, cell: (row) => (row.per_s == null ? UNKNOWN : `${number(row.per_s)}/s`) },
      { key: "left_s", title: "Left", right: true, cell: (row) => span(row.left_s) },
    ]} />`}
    <div class="columns"><section><h2>Deaths and recoveries</h2><${Events} newest=${overview.events} /></section>
      <section><h2>Mounted servers</h2>${mounts.length ? html`<ul class="plain">${mounts.map((each) => html`<li class="card" key=${each.name}>
        <h2><a href=${`#/system/${each.name}`}>${each.name}</a> <${State} state=${each.state} /></h2>
        <${Facts} facts=${Object.fromEntries(Object.entries(each.info).filter(([name]) => name !== "confined"))} />
        <a href=${`#/tools?service=${encodeURIComponent(each.name)}`}>Its tools</a>,
        ${" "}<a href=${`#/mounts/${encodeURIComponent(each.name)}`}>more</a></li>`)}</ul>`
      : html`<${Nothing}>None. Add yours with <code>linckia mcp import</code>.<//>`}</section></div>`;
}

function Cluster({ cluster }) {
  const links = (names) => names.map((name, index) => html`${index ? ", " : ""}<a key=${name} href=${`#/system/${name}`}>${name}</a>`);
  return html`<h2>Cluster</h2>
    ${cluster.problem && html`<p class="busy" role="status">${cluster.engine} at ${cluster.address} is not connected: ${cluster.problem}. Its services run on this machine.</p>`}
    <${Table} caption="Nodes of the cluster" rows=${cluster.nodes} keyOf=${(row) => row.name} empty="No node is connected." columns=${[
      { key: "name", title: "Node", cell: (row) => html`<code>${row.name}</code>` },
      { key: "num_cpus", title: "CPUs", right: true, cell: (row) => number(row.num_cpus) },
      { key: "num_gpus", title: "GPUs", right: true, cell: (row) => number(row.num_gpus) },
      { key: "memory_bytes", title: "Memory", right: true, cell: (row) => bytes(row.memory_bytes) },
      { key: "services", title: "Runs there", value: (row) => row.services.length, cell: (row) => (row.services.length ? links(row.services) : html`<span class="quiet">nothing</span>`) },
    ]} />`;
}

const EVENTS = { died: "bad", failed: "bad", recovered: "good", stopped: "quiet" };

function Events({ newest, service = "" }) {
  const work = useWork(() => operator("kernel_timeline", { service, limit: 50 }), [newest, service]);
  return html`<${Loaded} work=${work}>${({ events }) => html`
    <${Table} caption="Deaths and recoveries" rows=${events} keyOf=${(row) => row.number} empty="Nothing has happened." columns=${[
      { key: "at", title: "Time", cell: (row) => html`<${Time} at=${row.at} />` },
      { key: "service", title: "Service", cell: (row) => (row.service === "kernel" ? "kernel" : html`<a href=${`#/system/${row.service}`}>${row.service}</a>`) },
      { key: "kind", title: "Event", cell: (row) => html`<span class=${EVENTS[row.kind]}>${row.kind}</span>` },
      { key: "text", title: "Cause", cell: (row) => (row.recovery_ms != null ? `ready ${ms(row.recovery_ms)} after the death` : row.text || row.cause || "") },
    ]} />`}<//>`;
}

function Service({ name, tab, time }) {
  const { overview } = useLive();
  const one = overview?.services.find((each) => each.name === name);
  const base = `#/system/${name}`;
  const tabs = [["overview", "Overview"], ["log", "Log"], ["calls", "Calls"], ["setup", "Settings and walls"], ...(one?.mount ? [["definitions", "Definitions"]] : [])];
  return html`<p><a href="#/system">System</a></p><${Title}>${name}<//>
    <div class="row"><${State} state=${one?.state || ""} /> <${Controls} name=${name} /></div>
    <${Tabs} label=${`Parts of ${name}`} current=${`${base}/${tab}`} tabs=${tabs.map(([id, label]) => [`${base}/${id}`, label])} />
    ${tab === "overview" && html`<${Figures} one=${one} name=${name} events=${overview?.events} time=${time} />`}
    ${tab === "log" && html`<${Log} name=${name} />`}
    ${tab === "calls" && html`<${Calls} name=${one?.service || name} />`}
    ${tab === "setup" && html`<${Setup} name=${name} />`}
    ${tab === "definitions" && html`<${Definitions} mount=${name.replace(/^mcp_/, "")} />`}`;
}

// What a service says about itself, with the figures of its GPU in words.
function told({ gpu, ...info }) {
  if (!gpu?.startsWith("{")) return gpu ? { ...info, gpu } : info;
  const { name, number: index, used_bytes, total_bytes, utilization, celsius } = JSON.parse(gpu);
  const more = [utilization == null ? "" : `${percent(utilization)} busy`, celsius == null ? "" : `${celsius} °C`];
  return { ...info, GPU: [`${index} ${name}`, `${bytes(used_bytes)} of ${bytes(total_bytes)}`, ...more].filter(Boolean).join(", ") };
}

function Figures({ one, name, events, time }) {
  return html`${one && html`<${Facts} facts=${{
      process: one.pid ?? "none", generation: one.generation, up: span(one.uptime_s), memory: bytes(memory(one)), CPU: percent(one.cpu),
      standby: one.standby_pid ? `process ${one.standby_pid}` : "none", "in flight": one.in_flight, queued: one.queued, calls: number(one.calls), failed: number(one.failed),
      "median / p99": `${ms(one.p50_ms)} / ${ms(one.p99_ms)}`, "last recovery": ms(one.recovery_ms),
      deaths: Object.entries(one.deaths).map(([cause, count]) => `${cause} ${count}`).join(", ") || "none", note: note(one), ...told(one.info) }} />`}
    <${Charts} name=${name} span=${time} onSpan=${(value) => go(`/system/${name}`, { span: value })} />
    <h2>Deaths and recoveries</h2><${Events} newest=${events} service=${name} />`;
}

function Calls({ name }) {
  const work = useWork(() => operator("kernel_calls", { service: name, limit: 100 }), [name]);
  return html`<${Loaded} work=${work}>${({ calls }) => html`<${Table} caption="Calls" rows=${calls} keyOf=${(row) => row.number} empty="No calls yet." columns=${[
    { key: "at", title: "Time", cell: (row) => html`<${Time} at=${row.at} />` },
    { key: "operation", title: "Operation", cell: (row) => html`<a href=${`#/calls/${row.trace}`}>${row.operation}</a>` },
    { key: "who", title: "Client" }, { key: "duration_ms", title: "Time taken", right: true, cell: (row) => ms(row.duration_ms) },
    { key: "outcome", title: "Outcome", cell: (row) => html`<span class=${row.outcome === "ok" ? "good" : "bad"}>${row.outcome}</span>` },
  ]} />`}<//>`;
}

function Setup({ name }) {
  const work = useWork(() => operator("kernel_service", { service: name }), [name]);
  const text = (value) => (Array.isArray(value) ? value.join(", ") || "none" : value && typeof value === "object" ? JSON.stringify(value) : String(value ?? "none"));
  const shown = (facts) => Object.fromEntries(Object.entries(facts).map(([key, value]) => [key.replaceAll("_", " "), text(value)]));
  return html`<${Loaded} work=${work}>${(found) => html`<div class="columns">
    <section><h2>Settings</h2>${Object.keys(found.settings).length ? html`<${Json} value=${found.settings} />` : html`<${Nothing}>The settings file has none; the defaults apply.<//>`}
      <h2>Stores</h2><p>${bytes(found.store_bytes)}${found.growth_bytes_per_day != null ? `, growing by ${bytes(found.growth_bytes_per_day)} a day` : ""}</p>
      <${Table} caption="Stores" rows=${found.stores} keyOf=${(row) => row.path + row.keep} empty="It stores nothing." columns=${[
        { key: "path", title: "Files", cell: (row) => html`<code>${row.path || "all"}</code>` }, { key: "keep", title: "In a backup" },
        { key: "schema", title: "Schema", right: true, cell: (row) => row.schema || "" }]} /></section>
    <section><h2>Walls</h2><${Facts} facts=${shown(found.walls)} /></section>
    <section><h2>Supervision</h2><${Facts} facts=${shown(found.supervision)} /></section>
    <section><h2>Operations</h2><ul class="plain">${found.operations.map((each) => html`<li key=${each}><code>${each}</code></li>`)}</ul></section></div>`}<//>`;
}
