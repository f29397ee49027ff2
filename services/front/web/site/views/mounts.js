// The mounted MCP servers: how each does, its log and control, its tools with their calls and cost, and its definitions.
import { html } from "../lib.js";
import { operator } from "../api.js";
import { useLive } from "../app.js";
import { Definitions } from "../definitions.js";
import { Facts, Loaded, Nothing, State, Table, Tabs, Title, UNKNOWN, bytes, ms, number, span, useWork } from "../ui.js";
import { Controls, Log } from "../watching.js";

export const title = "Mounts";
export const order = 75;

const CHARACTERS_A_TOKEN = 4;
const serviceOf = (mount) => `mcp_${mount.replaceAll("-", "_")}`;
const tokens = (definition) => Math.round(JSON.stringify(definition).length / CHARACTERS_A_TOKEN);
const sum = (rows, of) => rows.reduce((total, each) => total + of(each), 0);

export function View({ parts: [name, tab = "tools"] }) {
  const { overview, status } = useLive();
  if (!overview)
    return html`<${Title}>Mounts<//>${status === 403 ? html`<${Nothing}>This view needs the address that <code>linckia status</code> shows.<//>`
      : html`<p class="quiet" role="status">Waiting for the kernel…</p>`}`;
  const services = Object.fromEntries(overview.services.filter((each) => each.mount).map((each) => [each.service, each]));
  return name ? html`<${Mount} key=${name} name=${name} tab=${tab} one=${services[serviceOf(name)]} />` : html`<${All} services=${services} />`;
}

// Why a server does not serve, or what it does now.
function why(one) {
  const parts = [one.reason, one.info.activity, one.info.login && "a login is needed", one.retry_in_s != null && `next try in ${span(one.retry_in_s)}`,
    one.last_death && `last death: ${one.last_death}`];
  return parts.filter(Boolean).join("; ");
}

const link = (name) => html`<a href=${`#/mounts/${encodeURIComponent(name)}`}>${name}</a>`;

const COLUMNS = [
  { key: "name", title: "Server", cell: (row) => link(row.name) },
  { key: "state", title: "State", value: (row) => row.one?.state, cell: (row) => (row.one ? html`<${State} state=${row.one.state} />` : html`<span class="quiet">${row.state}</span>`) },
  { key: "calls", title: "Calls", right: true, value: (row) => row.one?.calls, cell: (row) => number(row.one?.calls) },
  { key: "failed", title: "Failed", right: true, value: (row) => row.one?.failed, cell: (row) => number(row.one?.failed) },
  { key: "p50", title: "p50", right: true, wide: true, value: (row) => row.one?.p50_ms, cell: (row) => ms(row.one?.p50_ms) },
  { key: "memory", title: "Memory", right: true, wide: true, value: (row) => row.one?.pss_bytes, cell: (row) => bytes(row.one?.pss_bytes ?? row.one?.rss_bytes) },
  { key: "why", title: "Note", wide: true, value: (row) => (row.one ? why(row.one) : ""), cell: (row) => html`<span class="quiet">${row.one ? why(row.one) : ""}</span>` },
];

function All({ services }) {
  const known = Object.keys(services).sort().join();
  const work = useWork(() => operator("kernel_mounts", { version: -1 }), [known]);
  return html`<${Title}>Mounts<//><${Loaded} work=${work}>${({ mounts, disabled = [] }) => html`
    <${Table} caption="Mounted servers" sort="name" keyOf=${(row) => row.name} columns=${COLUMNS}
      rows=${[...mounts.map(({ name }) => ({ name, one: services[serviceOf(name)], state: "starting" })), ...disabled.map((name) => ({ name, state: "switched off" }))]}
      empty="None. Add yours on the command line: linckia mcp import, or linckia mcp add." />
    <p class="quiet"><code>linckia mcp --help</code> lists how to add, change and remove servers.</p>`}<//>`;
}

function Mount({ name, tab, one }) {
  const base = `#/mounts/${encodeURIComponent(name)}`;
  const tabs = [["tools", "Tools"], ["log", "Log"], ["definitions", "Definitions"]];
  if (!one) return html`<p><a href="#/mounts">Mounts</a></p><${Title}>${name}<//><${Nothing}>There is no such server, or it is switched off.<//>`;
  return html`<p><a href="#/mounts">Mounts</a></p><${Title}>${name}<//>
    <div class="row"><${State} state=${one.state} /> <${Controls} name=${one.service} /></div>
    ${why(one) && html`<p class=${["ready", "resting"].includes(one.state) ? "quiet" : "bad"}>${why(one)}</p>`}
    <${Tabs} label=${`Parts of ${name}`} current=${`${base}/${tab}`} tabs=${tabs.map(([id, label]) => [`${base}/${id}`, label])} />
    ${tab === "tools" && html`<${Tools} name=${name} one=${one} />`}
    ${tab === "log" && html`<${Log} name=${one.service} />`}
    ${tab === "definitions" && html`<${Definitions} mount=${name} />`}`;
}

function Tools({ name, one }) {
  const counted = useWork(() => operator("kernel_mount", { service: one.service }), [name, one.calls, one.failed, one.generation]);
  const offered = useWork(() => operator("mounts_offered", { mount: name }), [name, one.generation]);
  const { server, protocol, pid, confined, login, activity, rests, ...more } = one.info;
  return html`<${Facts} facts=${{
      server, protocol, process: pid || "none", generation: one.generation, up: span(one.uptime_s), memory: bytes(one.pss_bytes ?? one.rss_bytes),
      "in flight": one.in_flight, activity: activity || "none", "last ping of its adapter": counted.value ? ms(counted.value.ping_ms) : UNKNOWN,
      login: login && html`<a href=${/^https?:/.test(login) ? login : undefined} rel="noreferrer" target="_blank">${login}</a>`, ...more }} />
    <h2>Tools</h2><${Loaded} work=${offered}>${({ definitions = {}, held_back: isHeldBack }) => html`
      ${isHeldBack && html`<p class="busy">It now offers something else, which clients do not see until it is approved: <a href=${`#/mounts/${encodeURIComponent(name)}/definitions`}>Definitions</a>.</p>`}
      <${ToolTable} tools=${definitions.tools || []} counted=${counted.value?.tools || []} />`}<//>`;
}

function ToolTable({ tools, counted }) {
  const calls = new Map(counted.map((each) => [each.name, each]));
  const rows = tools.map((each) => ({ name: each.name, tokens: tokens(each), ...calls.get(each.name) }));
  const gone = counted.filter((each) => !tools.some((tool) => tool.name === each.name)).map((each) => ({ ...each, isGone: true }));
  return html`<p>About <b>${number(sum(rows, (row) => row.tokens))}</b> tokens in each conversation that lists all ${number(rows.length)}.</p>
    <${Table} caption="Tools" rows=${[...rows, ...gone]} keyOf=${(row) => row.name} empty="It has none, or has never started." columns=${[
      { key: "name", title: "Tool", cell: (row) => html`<code class="break">${row.name}</code>${row.isGone && html`${" "}<span class="quiet">not offered</span>`}` },
      { key: "tokens", title: "Tokens", right: true, cell: (row) => (row.isGone ? "" : number(row.tokens)) },
      { key: "calls", title: "Calls", right: true, cell: (row) => row.calls || "" },
      { key: "failed", title: "Failed", right: true, cell: (row) => (row.failed ? html`<span class="bad">${row.failed}</span>` : "") },
      { key: "p50_ms", title: "p50", right: true, cell: (row) => (row.calls ? ms(row.p50_ms) : "") },
    ]} />`;
}
