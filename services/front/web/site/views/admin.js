// Tokens, backups, the findings of `linckia doctor`, and the settings.
import { html, useState } from "../lib.js";
import { operator, operations } from "../api.js";
import { useLive } from "../app.js";
import { Settings } from "../settings.js";
import { Action, Facts, Loaded, Nothing, Table, Tabs, Time, Title, span, useWork } from "../ui.js";

export const title = "Administration";
export const order = 90;

const TABS = [["#/admin", "Tokens"], ["#/admin/backups", "Backups"], ["#/admin/doctor", "Doctor"], ["#/admin/settings", "Settings"]];

export function View({ parts: [part = ""], parameters }) {
  return html`<${Title}>Administration<//><${Tabs} label="Parts of the administration" tabs=${TABS} current=${part ? `#/admin/${part}` : "#/admin"} />
    ${part === "" && html`<${Tokens} />`}${part === "backups" && html`<${Backups} />`}${part === "doctor" && html`<${Doctor} />`}
    ${part === "settings" && html`<${Settings} ...${parameters} />`}`;
}

function Tokens() {
  const work = useWork(() => operator("kernel_token_list"), []);
  const [made, setMade] = useState(null);
  return html`<${Loaded} work=${work}>${({ tokens }) => html`
      <${Table} caption="Tokens" rows=${tokens} keyOf=${(row) => row.name} empty="None besides the kernel's own, which linckia status shows." columns=${[
        { key: "name", title: "Name" }, { key: "surfaces", title: "Surfaces", cell: (row) => row.surfaces.join(", ") || "all" }, { key: "roots", title: "Roots", cell: (row) => row.roots.join(", ") || "all" },
        { key: "read_only", title: "May", cell: (row) => (row.read_only ? "read" : "read, write") }, { key: "rate", title: "Rate", cell: (row) => row.rate || "" },
        { key: "created", title: "Created", wide: true, cell: (row) => html`<${Time} at=${row.created} />` },
        { key: "expires", title: "Expires", cell: (row) => (row.expires ? html`<span class=${row.expired ? "bad" : ""}><${Time} at=${row.expires} /></span>` : "never") },
        { key: "act", cell: (row) => html`<${Action} label=${`Revoke ${row.name}`} confirm=${`Revoke ${row.name}? Its clients lose access at once.`} act=${async () => { await operator("kernel_token_revoke", { name: row.name }); work.again(); }}>Revoke<//>` }]} />`}<//>
    ${made && html`<div class="card" role="status"><h2>${made.name}</h2><p>It is shown only this once. A client sends it as <code>Authorization: Bearer TOKEN</code>.</p><pre tabindex="0" aria-label="Token">${made.token}</pre></div>`}
    <${Create} onMade=${(token) => { setMade(token); work.again(); }} />`;
}

function Create({ onMade }) {
  const { overview } = useLive();
  const known = useWork(operations, []);
  const [error, setError] = useState(null);
  async function submit(event) {
    event.preventDefault();
    const data = new FormData(event.target);
    const text = (name) => data.get(name).trim();
    setError(null);
    try {
      onMade(await operator("kernel_token_create", { name: text("name"), expires: text("expires"), rate: text("rate"), read_only: data.has("read_only"), surfaces: data.getAll("surfaces"), roots: text("roots").split("\n").map((each) => each.trim()).filter(Boolean) }));
      event.target.reset();
    } catch (failure) {
      setError(failure);
    }
  }
  return html`<h2>Create a token</h2><form class="fields" onSubmit=${submit}>
    <label>Name <input name="name" required pattern="[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}" /><span class="hint">its name in the audit log</span></label>
    <label>Surfaces <select name="surfaces" multiple size="5">${(known.value?.surfaces || []).map((each) => html`<option key=${each.name}>${each.name}</option>`)}</select><span class="hint">none chosen: all</span></label>
    <label>Roots <textarea name="roots" placeholder=${(overview?.roots || []).join("\n")}></textarea><span class="hint">one folder per line; empty: all</span></label>
    <label>Expires <input name="expires" placeholder="30d" /><span class="hint">a time span or a date; empty: never</span></label>
    <label>Rate <input name="rate" placeholder="600/min" /></label>
    <div class="row"><label><input type="checkbox" name="read_only" /> may only read</label></div>
    ${error && html`<p class="error" role="alert">${error.message}</p>`}
    <div><button class="main">Create</button></div></form>`;
}

function Backups() {
  const { overview } = useLive();
  const backup = overview?.backup;
  if (!overview) return html`<${Nothing}>This view needs the address that <code>linckia status</code> shows.<//>`;
  return html`${backup ? html`<${Facts} facts=${{ destination: html`<code>${backup.to}</code>`, "latest snapshot": backup.snapshot || "none yet", age: backup.age_s == null ? "–" : span(backup.age_s),
      interval: backup.every_s == null ? "only by hand" : span(backup.every_s), failure: backup.error, problems: backup.problems.join("; ") }} />`
    : html`<${Nothing}>No backup is known. Set <code>to</code> in <code>[backup]</code> of the settings, or run <code>linckia backup FOLDER</code>.<//>`}
    <p><${Action} kind="main" act=${async () => `made ${(await operator("kernel_backup")).snapshot}`}>Back up now<//></p>`;
}

const VERDICTS = { ok: "good", note: "busy", bad: "bad" };

function Doctor() {
  const work = useWork(() => operator("kernel_doctor"), []);
  return html`<p><button onClick=${work.again} disabled=${work.busy}>Check again</button></p><${Loaded} work=${work}>${({ findings }) => html`
    <${Table} caption="Findings" rows=${findings} keyOf=${(row) => row.what + row.found} columns=${[
      { key: "verdict", title: "Verdict", cell: (row) => html`<span class=${VERDICTS[row.verdict]}>${row.verdict}</span>` }, { key: "what", title: "What" },
      { key: "found", title: "Found" }, { key: "remedy", title: "Remedy", cell: (row) => row.remedy && html`<code>${row.remedy}</code>` }]} />`}<//>`;
}
