// What clients changed in files, by client, session and task.
import { Fragment, html, useState } from "../lib.js";
import { call } from "../api.js";
import { Diff } from "../diff.js";
import { Failure, Loaded, Nothing, Time, go, plural, useWork } from "../ui.js";
import { Undo } from "../undoing.js";

const PAGE = 25;
const FILES = 10;

export function Changes({ day, path, offset, round, address }) {
  const chosen = { since: day.since, until: day.until, ...(path && { path }) };
  const work = useWork(() => call("changes_list", { ...chosen, limit: PAGE, offset }), [day.since, path, offset, round]);
  return html`<${Loaded} work=${work}>${(found) => html`
    ${(found.degraded || []).map((each) => html`<p class="busy" key=${each}>Changes may be missing: ${each}</p>`)}
    ${!found.changes.length && html`<${Nothing}>Clients changed no file that can be undone${path ? " there" : ""}.<//>`}
    ${grouped(found.changes, "client").map(([client, ofClient]) => html`<section key=${client} aria-label=${`Changes of ${client || "an unknown client"}`}>
      <h3>${client || "An unknown client"}</h3>
      ${grouped(ofClient, "session").map(([session, ofSession]) => html`<${Session} key=${session} changes=${ofSession}
        ...${{ client, session, chosen }} again=${work.again} />`)}</section>`)}
    <div class="row">${offset > 0 && html`<button onClick=${() => go(...address({ offset: String(Math.max(0, offset - PAGE)) }))}>Later changes</button>`}
      ${found.has_more && html`<button onClick=${() => go(...address({ offset: String(offset + PAGE) }))}>Earlier changes</button>`}</div>`}<//>`;
}

// Pairs of a member's value and the rows with it, in the order of their first rows.
function grouped(rows, member) {
  const found = new Map();
  for (const row of rows) {
    const value = row[member] || "";
    if (!found.has(value)) found.set(value, []);
    found.get(value).push(row);
  }
  return [...found];
}

function Session({ client, session, changes, chosen, again }) {
  const who = { client, ...(session && { session }) };
  return html`<div class="tree">
    ${session ? html`<div class="row"><h4 title=${session}>Session ${session.slice(0, 8)}</h4>
      <${Undo} what=${`all of session ${session.slice(0, 8)} of ${client} on this day`} chosen=${{ ...chosen, ...who }} onDone=${again}>Undo the session<//></div>`
      : html`<h4>Without a session</h4>`}
    ${grouped(changes, "task").map(([task, ofTask]) => (task ? html`<div class="tree" key=${task}>
        <div class="row"><h5>${task}</h5>
          <${Undo} what=${`all of ${task} of ${client} on this day`} chosen=${{ ...chosen, ...who, task }} onDone=${again}>Undo the task<//></div>
        ${ofTask.map((each) => html`<${Change} key=${each.id} change=${each} again=${again} />`)}</div>`
      : html`<${Fragment} key="">${ofTask.map((each) => html`<${Change} key=${each.id} change=${each} again=${again} />`)}<//>`))}</div>`;
}

function Change({ change, again }) {
  const left = change.files.filter((each) => !each.undone_by && !each.lost);
  const [undone, note] = useState(false);
  const first = change.files[0];
  return html`<article class="card" aria-label=${`${change.operation} of ${change.client}`}>
    <p><code>${change.operation}</code> <${Time} at=${change.at} />${change.undoes?.length > 0 && html`, undoes ${change.undoes.join(", ")}`}</p>
    <ul>${change.files.slice(0, FILES).map((each, index) => html`<${Path} key=${index} file=${each} />`)}</ul>
    ${change.files.length > FILES && html`<details><summary>${plural(change.files.length - FILES + (change.more_files || 0), "further path")}</summary>
      <ul>${change.files.slice(FILES).map((each, index) => html`<${Path} key=${index} file=${each} />`)}
        ${change.more_files > 0 && html`<li class="quiet">and ${plural(change.more_files, "path")} that are not listed</li>`}</ul></details>`}
    <${Diffs} id=${change.id} what=${first.path} />
    ${(left.length > 0 || undone) && html`<${Undo} what=${`${change.operation} of ${first.path}`} chosen=${{ id: change.id }} onDone=${() => { note(true); again(); }} />`}</article>`;
}

const DONE = { write: "changed", create: "created", move: "moved", copy: "copied", folder: "made the folder", rmdir: "removed the folder",
  trash: "put into the trash", restore: "restored", delete: "deleted for good" };

const Path = ({ file }) => html`<li>${DONE[file.kind] || file.kind} <code>${file.path}</code>${file.to && html` to <code>${file.to}</code>`}
  ${file.undone_by && html` <span class="quiet">undone by ${file.undone_by}</span>`}${file.lost && html` <span class="quiet">${file.lost}</span>`}</li>`;

function Diffs({ id, what }) {
  const [state, set] = useState({});
  const open = async (event) => {
    if (!event.target.open || state.shown) return;
    try {
      set({ shown: await call("changes_show", { id }) });
    } catch (error) {
      set({ error });
    }
  };
  return html`<details onToggle=${open}><summary>What was changed<span class="skip"> in ${what}</span></summary>
    ${state.error && html`<${Failure} error=${state.error} />`}
    ${state.shown?.files.map((each, index) => html`<div key=${index}>${each.diff ? html`<${Diff} text=${each.diff} label=${`Changes of ${each.path}`} />`
      : html`<p class="quiet">${each.kind} ${each.path}${each.note && `: ${each.note}`}</p>`}</div>`)}</details>`;
}
