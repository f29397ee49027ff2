// What clients changed in files: by whom and when, what it was, and taking it back.
import { html, useState } from "../lib.js";
import { call } from "../api.js";
import { Action, Failure, Loaded, Nothing, SearchForm, Time, Title, go, plural, useWork } from "../ui.js";

export const title = "Changes";
export const order = 55;

const PAGE = 25;

export function View({ parameters: { path = "", offset = "0" } }) {
  const shown = useWork(() => call("changes_list", { limit: PAGE, offset: Number(offset), ...(path && { path }) }), [path, offset]);
  return html`<${Title}>Changes<//>
    <p class="quiet">What clients changed in files, the latest first. An undo is a change, too, and can be undone.</p>
    <${SearchForm} label="Only a file or what is below a folder" value=${path} onSearch=${(text) => go("/changes", { path: text })} />
    <${Loaded} work=${shown}>${(found) => html`
      ${(found.degraded || []).map((each) => html`<p class="busy" key=${each}>Changes may be missing: ${each}</p>`)}
      ${found.changes.length ? found.changes.map((each) => html`<${Change} key=${each.id} change=${each} again=${shown.again} />`)
        : html`<${Nothing}>Clients have changed no file that can be undone.<//>`}
      <div class="row">${Number(offset) > 0 && html`<button onClick=${() => go("/changes", { path, offset: String(Math.max(0, Number(offset) - PAGE)) })}>Later ones</button>`}
        ${found.has_more && html`<button onClick=${() => go("/changes", { path, offset: String(Number(offset) + PAGE) })}>Earlier ones</button>`}</div>`}<//>`;
}

function Change({ change, again }) {
  const [said, say] = useState(null);
  const left = change.files.filter((each) => !each.undone_by && !each.lost);
  const undo = async () => {
    const done = await call("changes_undo", { id: change.id });
    say(done.results.filter((each) => each.status === "skipped"));
    again();
  };
  return html`<article class="card" aria-label=${`${change.operation} of ${change.client}`}>
    <p><code>${change.operation}</code> of ${change.client}, <${Time} at=${change.at} />${change.task && html`, part of ${change.task}`}
      ${change.undoes?.length > 0 && html`, undoes ${change.undoes.join(", ")}`}</p>
    <ul>${change.files.map((each, index) => html`<li key=${index}>${each.kind} <code>${each.path}</code>${each.to && html` to <code>${each.to}</code>`}
      ${each.undone_by && html` <span class="quiet">undone by ${each.undone_by}</span>`}${each.lost && html` <span class="quiet">${each.lost}</span>`}</li>`)}
      ${change.more_files > 0 && html`<li class="quiet">and ${plural(change.more_files, "further path", "further paths")}</li>`}</ul>
    ${said?.map((each) => html`<p class="busy" role="status" key=${each.path}>${each.path} was left: ${each.reason}</p>`)}
    <${Diffs} id=${change.id} />
    ${left.length > 0 && html`<div class="row"><${Action} label=${`Undo ${change.operation} of ${change.files[0].path}`} act=${undo}>Undo<//></div>`}</article>`;
}

function Diffs({ id }) {
  const [state, set] = useState({});
  const open = async (event) => {
    if (!event.target.open || state.shown) return;
    try {
      set({ shown: await call("changes_show", { id }) });
    } catch (error) {
      set({ error });
    }
  };
  return html`<details onToggle=${open}><summary>What was changed</summary>
    ${state.error && html`<${Failure} error=${state.error} />`}
    ${state.shown?.files.map((each, index) => html`<div key=${index}>${each.diff ? html`<pre tabindex="0" aria-label=${`Changes of ${each.path}`}>${each.diff}</pre>`
      : html`<p class="quiet">${each.kind} ${each.path}${each.note && `: ${each.note}`}</p>`}</div>`)}</details>`;
}
