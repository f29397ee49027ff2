// What may need care: notes that nothing links to, broken links, duplicates, and links that may be missing.
import { html, useState } from "../lib.js";
import { call } from "../api.js";
import { Loaded, Nothing, SearchForm, Table, go, number, percent, plural, useWork } from "../ui.js";
import { browsing, editAt, noteAt } from "./address.js";
import { Notes, Pages } from "./list.js";

const PAGE = 100;

export function Orphans({ find = "", offset = "0" }) {
  const from = Number(offset) || 0;
  const work = useWork(() => call("notes_browse", { ...browsing(find), unlinked: true, offset: from, limit: PAGE }), [find, from]);
  return html`<${SearchForm} label="Words of titles and paths, or #tag" value=${find} button="Filter" onSearch=${(text) => go("/notes/orphans", { find: text })} />
    <${Loaded} work=${work}>${(found) => html`<p class="quiet" role="status">No other note links to ${found.count === 1 ? "this note" : `these ${number(found.count)} notes`}.</p>
      <${Notes} notes=${found.notes} empty="A note links to each of them." />
      <${Pages} offset=${from} shown=${found.notes.length} count=${found.count} at="/notes/orphans" parameters=${{ find }} />`}<//>`;
}

export function Broken() {
  const [limit, set] = useState(PAGE);
  const work = useWork(() => call("notes_status", { limit }), [limit]);
  const columns = [
    { key: "note", title: "Note", cell: (row) => html`<a href=${noteAt(row.note)}>${row.note}</a>` },
    { key: "line", title: "Place", value: (row) => row.line || 0, cell: (row) => html`<a href=${editAt(row.note, { line: String(row.line || 1) })} aria-label=${`Edit ${row.note} at line ${row.line || 1}`}>${row.line ? `line ${row.line}` : "front matter"}</a>` },
    { key: "link", title: "Link", cell: (row) => html`<span class="broken">${row.link}</span>` },
    { key: "meant", title: "Perhaps meant", value: (row) => (row.meant || []).join(), cell: (row) => (row.meant || []).map((each) => html`<span key=${each}>${/[/.]/.test(each) ? each : html`<a href=${noteAt(each)}>${each}</a>`} </span>`) },
  ];
  return html`<${Loaded} work=${work}>${(found) => html`
    <p class="quiet" role="status">${found.pending || found.scanning ? "The notes are still being read; links are checked after that." : `${plural(found.broken_link_count, "link leads", "links lead")} to a note or file that is missing.`}</p>
    <${Table} caption="Broken links" columns=${columns} rows=${found.broken_links} keyOf=${(row) => `${row.note}\n${row.line}\n${row.link}`} empty="No link is broken." />
    ${found.broken_link_count > found.broken_links.length && (limit < 1000 ? html`<button onClick=${() => set(1000)}>More</button>` : html`<${Nothing}>Only the first ${number(limit)} are listed.<//>`)}`}<//>`;
}

export function Duplicates() {
  const [limit, set] = useState(25);
  const work = useWork(() => call("notes_duplicates", { limit }), [limit]);
  return html`<${Loaded} work=${work}>${(found) => html`
    ${(found.degraded || []).map((each) => html`<p class="busy" key=${each}>${each}</p>`)}
    <p class="quiet" role="status">${plural(found.groups.length + found.more, "group")} of notes that say the same, exactly or nearly.</p>
    ${found.groups.map((group, index) => html`<article class="card" key=${index} aria-label=${`Group ${index + 1}`}><p>${plural(group.size, "note")}, ${percent(group.share)} of the text in common</p>
      <ul class="plain listed">${group.notes.map((each) => html`<li key=${each.id}><a href=${noteAt(each.id)}>${each.id}</a><span class="quiet"><bdi>${each.path}</bdi></span></li>`)}</ul></article>`)}
    ${found.more > 0 && limit < 1000 && html`<button onClick=${() => set(Math.min(1000, limit * 4))}>More</button>`}`}<//>`;
}

export function Gaps() {
  const [limit, set] = useState(25);
  const work = useWork(() => call("notes_gaps", { limit }), [limit]);
  return html`<${Loaded} work=${work}>${(found) => html`
    <p class="quiet" role="status">${plural(found.length, "pair")} of notes with a similar meaning and no link between them.</p>
    ${found.map((gap, index) => html`<article class="card" key=${index}><p><a href=${noteAt(gap.source_id)}>${gap.source_id}</a> and <a href=${noteAt(gap.target_id)}>${gap.target_id}</a>
      ${" "}<span class="badge">similarity ${number(gap.similarity, 2)}</span></p><p class="quiet">${gap.reason}</p>
      <p><a href=${editAt(gap.source_id)} aria-label=${`Edit ${gap.source_id} to add a link to ${gap.target_id}`}>Add a link</a></p></article>`)}
    ${found.length >= limit && limit < 1000 && html`<button onClick=${() => set(Math.min(1000, limit * 4))}>More</button>`}`}<//>`;
}
