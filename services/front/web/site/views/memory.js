// What agents remember: by scope, with sources, times and conflicts; to correct and to forget.
import { html, useState } from "../lib.js";
import { call } from "../api.js";
import { Action, Loaded, Nothing, SearchForm, Select, Time, Title, go, number, plural, useWork } from "../ui.js";

export const title = "Memory";
export const order = 70;

export function View({ parameters: { query = "", scope = "", expired = "" } }) {
  const everything = useWork(() => call("memory_list", { limit: 500, include_expired: true }), []);
  const shown = useWork(() => (query ? call("recall", { query, limit: 50, include_expired: Boolean(expired), ...(scope && { scope }) })
    : call("memory_list", { limit: 500, include_expired: Boolean(expired), ...(scope && { scope }) })), [query, scope, expired]);
  const set = (more) => go("/memory", { query, scope, expired, ...more });
  const again = () => { everything.again(); shown.again(); };
  const scopes = [...new Set((everything.value?.memories || []).map((each) => each.scope))].sort();
  const texts = new Map((everything.value?.memories || []).map((each) => [each.id, each.text]));
  return html`<${Title}>Memory<//>
    <${SearchForm} label="What is remembered about" value=${query} onSearch=${(text) => set({ query: text })} />
    <div class="row"><${Select} label="Scope" value=${scope} options=${[["", "all"], ...scopes.map((each) => [each, each])]} onChange=${(value) => set({ scope: value })} />
      <label><input type="checkbox" checked=${Boolean(expired)} onChange=${(event) => set({ expired: event.target.checked ? "yes" : "" })} /> Also expired ones</label></div>
    <${Add} scopes=${scopes} again=${again} />
    <${Loaded} work=${shown}>${(found) => html`<p class="quiet">${plural(found.total ?? found.count, "memory", "memories")}${found.unlikely ? `, ${found.unlikely} unlikely ones left out` : ""}.</p>
      ${found.memories.length ? found.memories.map((each) => html`<${Memory} key=${each.id} memory=${each} texts=${texts} again=${again} />`)
        : html`<${Nothing}>Agents store them with <code>remember</code>.<//>`}`}<//>`;
}

function Add({ scopes, again }) {
  const [text, setText] = useState("");
  const [scope, setScope] = useState("user");
  return html`<details><summary>Add one</summary><div class="row">
    <input class="grow" aria-label="A statement" placeholder="A statement" value=${text} onInput=${(event) => setText(event.target.value)} />
    <label>Scope <input list="scopes" value=${scope} onInput=${(event) => setScope(event.target.value)} /></label>
    <datalist id="scopes">${scopes.map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    <${Action} kind="main" act=${async () => { await call("remember", { text, scope, source: "operator's page" }); setText(""); again(); }}>Remember<//></div></details>`;
}

function Memory({ memory, texts, again }) {
  const [edited, edit] = useState(null);
  const conflicts = (memory.similar_to || []).filter((id) => texts.has(id));
  return html`<article class="card">
    ${edited === null ? html`<p class="text">${memory.text}</p>` : html`<textarea aria-label="The statement" value=${edited} onInput=${(event) => edit(event.target.value)}></textarea>`}
    <p class="quiet"><span class="badge">${memory.scope}</span>${" "}<${Time} at=${memory.at} />${memory.source ? `, from ${memory.source}` : ""}
      ${memory.tags?.length > 0 && `, tags: ${memory.tags.join(", ")}`}${memory.expires && html`, expires ${" "}<${Time} at=${memory.expires} />`}
      ${memory.valid_from && html`, valid from ${" "}<${Time} at=${memory.valid_from} />`}${memory.valid_until && html`, valid until ${" "}<${Time} at=${memory.valid_until} />`}
      ${memory.score != null && `, score ${number(memory.score, 2)}`}</p>
    ${memory.stale && html`<p class="busy">May not be true: ${memory.stale}.</p>`}
    ${memory.replaced?.length > 0 && html`<p class="quiet">Replaced: ${memory.replaced.map((each) => `“${each.text}”`).join("; ")}</p>`}
    ${conflicts.length > 0 && html`<p class="busy">Says something similar to: ${conflicts.map((id) => `“${texts.get(id)}”`).join("; ")}. Correct or forget one of them if they conflict.</p>`}
    <div class="row">${edited === null ? html`<button onClick=${() => edit(memory.text)}>Correct</button>`
      : html`<${Action} kind="main" act=${async () => { await call("memory_update", { id: memory.id, text: edited }); edit(null); again(); }}>Save<//><button onClick=${() => edit(null)}>Cancel</button>`}
      <${Action} label=${`Forget: ${memory.text}`} confirm=${`Forget “${memory.text}”? This cannot be undone.`} act=${async () => { await call("forget", { id: memory.id }); again(); }}>Forget<//></div></article>`;
}
