// A note: its text, and beside it its properties, headings, links, backlinks, similar notes and neighbourhood.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { call } from "../api.js";
import { Action, Facts, Loaded, Nothing, Title, go, plural, useWork } from "../ui.js";
import { editAt, noteAt, tagAt } from "./address.js";
import { draftOf } from "./drafts.js";
import { bodyOf } from "./embeds.js";
import { fill, linksOf } from "./markdown.js";
import { Network } from "./network.js";

// The change that was saved last for each note, so that it can be taken back.
const saved = new Map();
export const justSaved = (id, done) => saved.set(id, done);

export function Note({ id, heading = "", depth = 1 }) {
  const [backlinks, setBacklinks] = useState(100);
  const work = useWork(() => call("notes_show", { id, backlinks }), [id, backlinks]);
  return html`<p><a href="#/notes">Notes</a></p><${Title}>${work.value?.title || id}<//>
    <${Loaded} work=${work}>${(note) => html`
      <p class="quiet"><bdi>${note.path}</bdi></p>
      <${Saved} id=${note.id} again=${work.again} />
      <div class="row"><a class="button" href=${editAt(note.id)}>Edit</a>
        ${draftOf(note.file) && html`<span class="busy">There is <a href=${editAt(note.id)}>text that you have not saved</a>.</span>`}</div>
      ${note.problem && html`<p class="busy">Its front matter cannot be read: ${note.problem}</p>`}
      <div class="note-columns"><article aria-label="The note"><${Markdown} note=${note} heading=${heading} /></article>
        <aside aria-label="About the note">
          <${About} note=${note} all=${() => setBacklinks(10_000)} />
          <${Similar} id=${note.id} /><${Neighbourhood} id=${note.id} label=${note.title} depth=${depth} /></aside></div>`}<//>`;
}

export function Markdown({ note, heading = "" }) {
  const place = useRef();
  useEffect(() => {
    const end = fill(place.current, bodyOf(note), { id: note.id, links: linksOf(note.links || []), chain: [] });
    const wanted = heading.split("#").pop().trim().toLowerCase();
    const found = wanted && [...place.current.querySelectorAll("[data-heading]")].find((each) => each.dataset.heading === wanted);
    if (found) {
      found.tabIndex = -1;
      found.focus({ preventScroll: true });
      found.scrollIntoView({ block: "start" });
    }
    return end;
  }, [note, heading]);
  return html`<div class="markdown" ref=${place}></div>`;
}

function Saved({ id, again }) {
  const [, redraw] = useState(0);
  const done = saved.get(id);
  if (!done) return null;
  const undo = async () => {
    const { results } = await call("changes_undo", { id: done.change });
    const left = results.find((each) => each.status === "skipped");
    saved.set(id, left ? { ...done, said: `Not undone: ${left.reason}` } : { said: "The change was taken back." });
    redraw((count) => count + 1);
    if (!left) again();
  };
  return html`<p class="row" role="status"><span class=${done.change ? "good" : ""}>${done.said || "Saved."}</span>
    ${done.change ? html`<${Action} act=${undo}>Undo<//>` : done.notKept && html`<span class="quiet">It cannot be undone: ${done.notKept}</span>`}</p>`;
}

const FEW = 15;

function About({ note, all }) {
  const [whole, setWhole] = useState(false);
  const properties = (note.properties || []).filter(({ name }) => name !== "tags");
  const links = note.links || [];
  const backlinks = (note.backlinks || []).slice(0, whole ? undefined : FEW);
  return html`
    ${note.tags?.length > 0 && html`<p class="row">${note.tags.map((each) => html`<a key=${each} class="tag" href=${tagAt(each)}>#${each}</a>`)}</p>`}
    ${properties.length > 0 && html`<h2>Properties</h2><${Facts} facts=${Object.fromEntries(properties.map(({ name, values }) => [name, values.join(", ")]))} />`}
    ${note.headings?.length > 1 && html`<details><summary>${plural(note.headings.length, "heading")}</summary><ul class="plain">${note.headings.map((each) => html`
      <li key=${each.line} style=${{ paddingLeft: `${(each.level - 1) * 0.8}rem` }}><a href=${noteAt(note.id, { heading: each.title })}>${each.title}</a></li>`)}</ul></details>`}
    <h2>Backlinks${note.backlink_count > 0 && html` <span class="badge">${note.backlink_count.toLocaleString("en")}</span>`}</h2>
    ${backlinks.length ? html`<ul class="plain" aria-label="Backlinks">${backlinks.map((each) => html`<li key=${each.id}><a href=${noteAt(each.id)}>${each.title}</a></li>`)}</ul>`
      : html`<${Nothing}>No note links to this one.<//>`}
    ${note.backlink_count > backlinks.length && html`<button class="link" onClick=${() => { setWhole(true); if (note.backlink_count > note.backlinks.length) all(); }}>All ${note.backlink_count.toLocaleString("en")}</button>`}
    <h2>Links</h2><${Links} id=${note.id} links=${links} />`;
}

function Links({ id, links }) {
  const [whole, setWhole] = useState(false);
  const known = [...new Map(links.filter((each) => each.id && each.id !== id).map((each) => [each.id, each])).values()];
  const files = links.filter((each) => each.file);
  const broken = links.filter((each) => !each.id && !each.file && !each.relation);
  const shown = whole ? known : known.slice(0, 100);
  return html`${known.length + files.length + broken.length === 0 && html`<${Nothing}>None.<//>`}
    <ul class="plain" aria-label="Links">${shown.map((each) => html`<li key=${each.id}><a href=${noteAt(each.id)}>${each.title || each.id}</a>
      ${each.relation && html` <span class="badge">${each.relation.toLowerCase()}</span>`}</li>`)}
      ${files.map((each) => html`<li key=${each.file} class="quiet"><bdi>${each.written}</bdi>, a file</li>`)}
      ${broken.map((each, index) => html`<li key=${`broken${index}`}><span class="broken">${each.written}</span>${" "}
        ${each.line > 0 && html`<a href=${editAt(id, { line: String(each.line) })}>line ${each.line}</a>`} <span class="badge">missing</span></li>`)}</ul>
    ${shown.length < known.length && html`<button class="link" onClick=${() => setWhole(true)}>All ${known.length}</button>`}`;
}

function Similar({ id }) {
  const similar = useWork(() => call("notes_links", { id, relation: "similar" }), [id]);
  // Without vectors there are none yet, which is no fault of the page.
  if (similar.error?.status === 503) return html`<h2>Similar</h2><p class="quiet">${similar.error.message}${" "}<button onClick=${similar.again}>Try again</button></p>`;
  return html`<h2>Similar</h2><${Loaded} work=${similar}>${(found) => (found.length ? html`<ul class="plain">${found.map(({ target }) => html`
    <li key=${target}><a href=${noteAt(target)}>${target}</a></li>`)}</ul>` : html`<${Nothing}>None.<//>`)}<//>`;
}

function Neighbourhood({ id, label, depth }) {
  const around = useWork(() => call("graph_neighbors", { id, corpus: "notes", depth, limit: 10_000 }), [id, depth]);
  return html`<h2>Neighbourhood</h2>
    <div class="row" role="group" aria-label="Steps from the note">${[1, 2, 3].map((each) => html`
      <label key=${each}><input type="radio" name="depth" checked=${each === depth} onChange=${() => go(`/notes/note/${encodeURIComponent(id)}`, { depth: each })} /> ${plural(each, "step")}</label>`)}</div>
    <${Loaded} work=${around}>${(found) => html`<${Drawn} id=${id} label=${label} found=${found} />`}<//>`;
}

function Drawn({ id, label, found }) {
  const { nodes, edges } = useMemo(() => {
    const drawn = [{ id, label }, ...found.nodes];
    const places = new Map(drawn.map((node, index) => [node.id, index]));
    const ends = found.edges.map((edge) => [places.get(edge.source), places.get(edge.target)]);
    return { nodes: drawn, edges: ends.filter(([one, other]) => one !== undefined && other !== undefined && one !== other).flat() };
  }, [found, id]);
  return html`<${Network} nodes=${nodes} edges=${edges} label=${`Notes around ${label}`} height=${340} centre=${0} onOpen=${(node) => { location.hash = noteAt(node.id); }} />
    <p class="quiet">${plural(nodes.length, "note")}, ${plural(edges.length / 2, "link")}${found.complete ? "" : "; some were left out"}.${" "}
      <a href=${`#/notes/graph?${new URLSearchParams({ around: id, depth: "2" })}`}>In the whole graph</a></p>`;
}
