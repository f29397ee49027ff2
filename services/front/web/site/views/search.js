// Search in all corpora at once, and a note with its backlinks and its neighbourhood in the graph.
import { html, useMemo, useState } from "../lib.js";
import { call } from "../api.js";
import { Graph } from "../charts.js";
import { Highlighted, Loaded, Nothing, SearchForm, Title, go, number, plural, useWork } from "../ui.js";

export const title = "Search";
export const order = 30;

const CORPORA = { notes: "Notes", documents: "Documents", transcripts: "Conversations", memory: "Memory" };

export function View({ parts, parameters }) {
  if (parts[0] === "note") return html`<${Note} key=${parts[1]} id=${parts[1]} depth=${Number(parameters.depth) || 1} />`;
  return html`<${Results} ...${parameters} />`;
}

// Where a hit is opened.
export function placeOf({ corpus, id, title: named }) {
  if (corpus === "notes") return `#/search/note/${encodeURIComponent(id)}`;
  if (corpus === "documents") return `#/documents/file/${encodeURIComponent(id)}`;
  if (corpus === "transcripts") return `#/conversations/${encodeURIComponent(id)}`;
  return `#/memory?id=${encodeURIComponent(id)}&query=${encodeURIComponent(named || "")}`;
}

function Results({ query = "", corpora = "", unlikely = "" }) {
  const chosen = corpora ? corpora.split(",") : Object.keys(CORPORA);
  const set = (more) => go("/search", { query, corpora, unlikely, ...more });
  const toggle = (corpus) => {
    const next = chosen.includes(corpus) ? chosen.filter((each) => each !== corpus) : [...chosen, corpus];
    set({ corpora: next.length === Object.keys(CORPORA).length ? "" : next.join(",") });
  };
  const work = useWork(async () => {
    if (!query) return null;
    const began = performance.now();
    const found = await call("everything_search", { query, corpora: corpora ? chosen : [], limit: 30, ...(unlikely && { min_score: 0 }) });
    return { ...found, tookMs: performance.now() - began };
  }, [query, corpora, unlikely]);
  return html`<${Title}>Search<//>
    <${SearchForm} label="Words or a question" value=${query} onSearch=${(text) => set({ query: text })} />
    <div class="row" role="group" aria-label="Filters">${Object.entries(CORPORA).map(([corpus, name]) => html`
      <label key=${corpus}><input type="checkbox" checked=${chosen.includes(corpus)} onChange=${() => toggle(corpus)} /> ${name}</label>`)}
      <label><input type="checkbox" checked=${Boolean(unlikely)} onChange=${(event) => set({ unlikely: event.target.checked ? "yes" : "" })} /> Also unlikely ones</label></div>
    <${Loaded} work=${work}>${(found) => (found === null ? html`<${Nothing}>Notes, documents, conversations and memories are searched together, by words and by meaning.<//>` : html`
      <p class="quiet" role="status">${plural(found.count, "passage")} in ${found.tookMs.toFixed(0)} ms${found.unlikely ? `, ${found.unlikely} unlikely ones left out` : ""}. ${found.note || ""}
        ${found.degraded.map((each) => html`<span class="busy" key=${each}> ${each}.</span>`)}</p>
      ${found.results.map((hit, index) => html`<${Hit} key=${`${hit.corpus}${hit.id}${index}`} hit=${hit} query=${query} />`)}`)}<//>`;
}

function Hit({ hit, query }) {
  const [whole, setWhole] = useState(false);
  const about = [hit.metadata.path, hit.metadata.project, hit.metadata.agent, hit.metadata.scope].filter(Boolean).join(", ");
  const text = whole ? hit.text : around(hit.text, query);
  return html`<article class="card">
    <h2><a href=${placeOf(hit)}>${hit.title || hit.text.slice(0, 80)}</a> <span class="badge">${CORPORA[hit.corpus] || hit.corpus}</span>
      ${hit.score < UNLIKELY && html`<span class="badge">unlikely</span>`}</h2>
    <p class="quiet">${hit.context && hit.context !== hit.title ? `${hit.context}. ` : ""}${about}${hit.lines ? `, lines ${hit.lines}` : ""}</p>
    <p class="text"><${Highlighted} text=${text} query=${query} />${" "}
      ${text.length < hit.text.length && html`<button class="link" onClick=${() => setWhole(true)}>the whole passage</button>`}</p>
    <p class="quiet"><${Why} hit=${hit} /></p></article>`;
}

function Why({ hit }) {
  const { words, similarity, rerank } = hit.ranking || {};
  const parts = [];
  if (words != null) parts.push(`words ${number(words, 2)}`);
  if (similarity != null) parts.push(`similarity ${number(similarity, 2)}`);
  if (rerank != null) parts.push(`cross-encoder ${number(rerank, 2)}`);
  return html`Score <b>${number(hit.score, 2)}</b> (${hit.source})${parts.length ? `: ${parts.join(", ")}` : ""}`;
}

// As in proto/ops/retrieve.py: below it, hits are only the nearest.
const UNLIKELY = 0.05;

const ROOM = 360;

// The part of a long text around the first word of the query.
function around(text, query) {
  if (text.length <= ROOM) return text;
  const words = query.toLowerCase().split(/\s+/).filter((word) => word.length > 3);
  const places = words.map((word) => text.toLowerCase().indexOf(word)).filter((place) => place >= 0);
  const start = Math.max(0, (places.length ? Math.min(...places) : 0) - 80);
  return (start ? "…" : "") + text.slice(start, start + ROOM) + (start + ROOM < text.length ? "…" : "");
}

function Note({ id, depth }) {
  const content = useWork(() => call("notes_read", { id }), [id]);
  const links = useWork(async () => ({
    out: await call("notes_links", { id, direction: "out" }), into: await call("notes_links", { id, direction: "in" }),
  }), [id]);
  const similar = useWork(() => call("notes_links", { id, relation: "similar" }), [id]);
  const around_ = useWork(() => call("graph_neighbors", { id, corpus: "notes", depth, limit: 10_000 }), [id, depth]);
  return html`<p><a href="#/search">Search</a></p><${Title}>${id}<//>
    <div class="columns"><section><${Loaded} work=${content}>${(note) => html`<pre tabindex="0" aria-label="The note">${note.text}</pre>`}<//></section>
      <section><h2>Neighbourhood</h2>
        <div class="row" role="group" aria-label="Steps from the note">${[1, 2, 3].map((each) => html`
          <label key=${each}><input type="radio" name="depth" checked=${each === depth} onChange=${() => go(`/search/note/${encodeURIComponent(id)}`, { depth: each })} /> ${plural(each, "step")}</label>`)}</div>
        <${Loaded} work=${around_}>${(found) => html`<${Neighbourhood} id=${id} found=${found} />`}<//>
        <${Loaded} work=${links}>${({ out, into }) => html`<h2>Backlinks</h2><${Links} links=${into} end="source" /><h2>Links</h2><${Links} links=${out} end="target" />`}<//>
        <h2>Similar</h2><${Loaded} work=${similar}>${(found) => html`<${Links} links=${found} end="target" />`}<//></section></div>`;
}

function Links({ links, end }) {
  const names = [...new Set(links.map((each) => each[end] || each.target))];
  return names.length ? html`<ul class="plain">${names.map((name) => html`<li key=${name}><a href=${`#/search/note/${encodeURIComponent(name)}`}>${name}</a></li>`)}</ul>`
    : html`<${Nothing}>None.<//>`;
}

function Neighbourhood({ id, found }) {
  const { nodes, edges } = useMemo(() => graphOf({ id, label: id, known: true }, found), [found, id]);
  return html`<${Graph} nodes=${nodes} edges=${edges} label=${`Notes around ${id}`} onOpen=${(node) => go(`/search/note/${encodeURIComponent(node.id)}`)} />
    <p class="quiet">${plural(nodes.length, "note")}, ${plural(edges.length, "link")}${found.complete ? "" : "; some were left out"}. Drag to move, the wheel or + and − zoom.</p>`;
}

// Nodes with the centre first, and edges as pairs of indexes.
export function graphOf(centre, found) {
  const nodes = [centre, ...found.nodes];
  const places = new Map(nodes.map((node, index) => [node.id, index]));
  const edges = found.edges.map((edge) => [places.get(edge.source), places.get(edge.target)]).filter(([one, other]) => one !== undefined && other !== undefined && one !== other);
  return { nodes, edges };
}
