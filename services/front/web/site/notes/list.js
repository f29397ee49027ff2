// The folders as a tree, and the list of notes with its filter.
import { html, useState } from "../lib.js";
import { call } from "../api.js";
import { Failure, Loaded, Nothing, SearchForm, Time, go, plural, useWork } from "../ui.js";
import { browsing, noteAt } from "./address.js";

const PAGE = 100;

export function Browser({ find = "", folder = "", offset = "0" }) {
  const narrow = matchMedia("(max-width: 40rem)").matches;
  return html`<${SearchForm} label="Words of titles and paths, or #tag" value=${find} button="Filter" onSearch=${(text) => go("/notes", { find: text, folder })} />
    <div class="notes-columns">
      <nav aria-label="Folders"><details open=${!narrow}><summary>Folders</summary><${Tree} chosen=${folder} find=${find} /></details></nav>
      <section><${List} find=${find} folder=${folder} offset=${Number(offset) || 0} /></section></div>`;
}

function Tree({ chosen, find }) {
  const top = useWork(() => call("notes_browse", { limit: PAGE }), []);
  return html`<${Loaded} work=${top}>${(found) => html`
    ${chosen && html`<p><a href=${`#/notes${find ? `?${new URLSearchParams({ find })}` : ""}`}>All folders</a></p>`}
    <${Entries} path="" first=${found} find=${find} />`}<//>`;
}

// The folders and notes of a folder, page by page.
function Entries({ path, first, find }) {
  const [notes, set] = useState(first.notes);
  const [error, fail] = useState(null);
  const more = async () => {
    try {
      const next = await call("notes_browse", { folder: path, limit: PAGE, offset: notes.length });
      set([...notes, ...next.notes]);
    } catch (problem) {
      fail(problem);
    }
  };
  return html`<ul class="plain branch">${first.folders.map((each) => html`<li key=${each.path}><${Branch} folder=${each} find=${find} /></li>`)}
    ${notes.map((each) => html`<li key=${each.id}><a href=${noteAt(each.id)}>${each.path.split("/").pop().replace(/\.md$/i, "")}</a></li>`)}
    ${notes.length < first.count && html`<li><button class="link" onClick=${more}>${plural(first.count - notes.length, "more note")} of this folder</button></li>`}</ul>
    ${error && html`<${Failure} error=${error} again=${() => { fail(null); more(); }} />`}`;
}

function Branch({ folder, find }) {
  const [state, set] = useState({});
  const load = async () => {
    try {
      set({ found: await call("notes_browse", { folder: folder.path, limit: PAGE }) });
    } catch (error) {
      set({ error });
    }
  };
  return html`<details onToggle=${(event) => { if (event.target.open && event.target === event.currentTarget && !state.found) load(); }}>
    <summary>${folder.name}/ <span class="quiet">${folder.notes.toLocaleString("en")}</span></summary>
    <a class="quiet" href=${`#/notes?${new URLSearchParams({ folder: folder.path, ...(find && { find }) })}`}>List all below ${folder.name}/</a>
    ${state.error && html`<${Failure} error=${state.error} again=${load} />`}
    ${state.found && html`<${Entries} path=${folder.path} first=${state.found} find=${find} />`}</details>`;
}

function List({ find, folder, offset }) {
  const work = useWork(() => call("notes_browse", {
    ...browsing(find), ...(folder && { folder }), below: true, latest: true, offset, limit: PAGE,
  }), [find, folder, offset]);
  return html`<${Loaded} work=${work}>${(found) => html`
    <p class="quiet" role="status">${plural(found.count, "note")}${find && ` with “${find}”`}${folder && ` below ${folder}`}, the latest first.${" "}
      ${find && html`<a href=${`#/search?${new URLSearchParams({ query: find, corpora: "notes" })}`}>Search the texts</a>`}</p>
    <${Notes} notes=${found.notes} />
    <${Pages} offset=${offset} shown=${found.notes.length} count=${found.count} at="/notes" parameters=${{ find, folder }} />`}<//>`;
}

export function Notes({ notes, empty = "No note matches." }) {
  return notes.length ? html`<ul class="plain listed">${notes.map((each) => html`<li key=${each.id}>
    <a href=${noteAt(each.id)}>${each.title}</a><span class="quiet"><bdi>${each.path}</bdi>, <${Time} at=${each.date} /></span></li>`)}</ul>`
    : html`<${Nothing}>${empty}<//>`;
}

export function Pages({ offset, shown, count, at, parameters }) {
  if (!offset && shown >= count) return null;
  return html`<div class="row">
    ${offset > 0 && html`<button onClick=${() => go(at, { ...parameters, offset: String(Math.max(0, offset - PAGE)) })}>Back</button>`}
    <span class="quiet">${offset + 1}–${offset + shown} of ${count.toLocaleString("en")}</span>
    ${offset + shown < count && html`<button onClick=${() => go(at, { ...parameters, offset: String(offset + PAGE) })}>More</button>`}</div>`;
}
