// Hits of a search: passages, and what has the query in its name.
import { html, useState } from "../lib.js";
import { Highlighted, Loaded, bytes, number } from "../ui.js";

export const CORPORA = { notes: "Notes", documents: "Documents", transcripts: "Conversations", memory: "Memory" };

// As in proto/ops/retrieve.py: below it, hits are only the nearest.
const UNLIKELY = 0.05;

const ROOM = 360;

// Where a hit is opened.
export function placeOf({ corpus, id, title: named, lines }) {
  if (corpus === "notes") return `#/notes/note/${encodeURIComponent(id)}`;
  if (corpus === "documents") return `#/documents/file/${encodeURIComponent(id)}${lines ? `?lines=${lines}` : ""}`;
  if (corpus === "transcripts") return `#/conversations/${encodeURIComponent(id)}?turn=${encodeURIComponent(id)}`;
  return `#/memory?id=${encodeURIComponent(id)}&query=${encodeURIComponent(named || "")}`;
}

export function Passage({ hit, query, unlikely }) {
  const [whole, setWhole] = useState(false);
  const about = [hit.metadata.path, hit.metadata.project, hit.metadata.agent, hit.metadata.scope].filter(Boolean).join(", ");
  const text = whole ? hit.text : around(hit.text, query);
  return html`<article class="card">
    <h2><a class="hit" href=${placeOf(hit)}>${hit.title || hit.text.slice(0, 80)}</a> <span class="badge">${CORPORA[hit.corpus] || hit.corpus}</span>
      ${(unlikely || hit.score < UNLIKELY) && html` <span class="badge">unlikely</span>`}</h2>
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

// The part of a long text around the first word of the query.
function around(text, query) {
  if (text.length <= ROOM) return text;
  const words = query.toLowerCase().split(/\s+/).filter((word) => word.length > 3);
  const places = words.map((word) => text.toLowerCase().indexOf(word)).filter((place) => place >= 0);
  const start = Math.max(0, (places.length ? Math.min(...places) : 0) - 80);
  return (start ? "…" : "") + text.slice(start, start + ROOM) + (start + ROOM < text.length ? "…" : "");
}

const folderOf = (path) => path.slice(0, path.lastIndexOf("/")) || "/";

export function placeOfFile({ kind, path }) {
  if (kind === "directory") return `#/disk/map?path=${encodeURIComponent(path)}`;
  return `#/disk/map?path=${encodeURIComponent(folderOf(path))}&file=${encodeURIComponent(path)}`;
}

export function Files({ work, query }) {
  return html`<${Loaded} work=${work}>${({ entries, total }) => (entries.length ? html`<h2>Files by name</h2>
    <ul class="plain">${entries.map((each) => html`<li class="found" key=${each.path}>
      <a class="hit" href=${placeOfFile(each)}><${Highlighted} text=${each.name} query=${query} />${each.kind === "directory" ? "/" : ""}</a>
      <span class="quiet"> ${bytes(each.size)}, ${folderOf(each.path)}</span></li>`)}</ul>
    ${total > entries.length && html`<p class="quiet">${number(total - entries.length)} more. A longer part of the name finds fewer.</p>`}` : "")}<//>`;
}

export function Names({ found }) {
  return found.length ? html`<h2>Views and operations</h2><ul class="plain">${found.map(({ href, name, about }) => html`<li class="found" key=${href}>
    <a class="hit" href=${href}>${name}</a> <span class="quiet">${about}</span></li>`)}</ul>` : "";
}
