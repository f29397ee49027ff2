// Search in all corpora at once and by names.
import { html, useEffect, useRef } from "../lib.js";
import { call, operations } from "../api.js";
import { useViews } from "../search_field.js";
import { CORPORA, Files, Names, Passage } from "../search/hits.js";
import { Loaded, Nothing, Title, go, plural, useWork } from "../ui.js";

export const title = "Search";
export const order = 30;

const NAMED = 5;
const NEAREST = 3;

export function View({ parts, parameters }) {
  if (parts[0] === "note") return html`<${Moved} id=${parts[1]} />`;
  return html`<${Results} ...${parameters} />`;
}

// The likely passages, or else the nearest ones.
async function passages(query, corpora, unlikely) {
  const began = performance.now();
  const ask = (more) => call("everything_search", { query, corpora, limit: 30, ...more });
  let found = await ask(unlikely ? { min_score: 0 } : {});
  // `note` says that no hit is likely.
  const nearest = !unlikely && (!found.results.length || Boolean(found.note));
  if (nearest) found = { ...(await ask({ min_score: 0, limit: NEAREST })), unlikely: 0 };
  return { ...found, nearest, tookMs: performance.now() - began };
}

// Files with the query in their names, where a space may be "-" or "_".
async function filesNamed(query) {
  const text = query.trim();
  const names = [...new Set([text, text.replace(/\s+/g, "-"), text.replace(/\s+/g, "_")])];
  const found = await Promise.all(names.map((name) => call("files_find", { name_contains: name, sort_by: "mtime", limit: NAMED })));
  const entries = new Map(found.flatMap((each) => each.entries).map((each) => [each.path, each]));
  return { entries: [...entries.values()].slice(0, NAMED), total: found.reduce((sum, each) => sum + each.total_count, 0) };
}

let known = null;

// The operations are asked for once; a failure is forgotten.
function allOperations() {
  known ||= operations().catch((error) => { known = null; throw error; });
  return known;
}

async function operationsNamed(query) {
  const text = query.trim().toLowerCase().replace(/\s+/g, "_");
  const found = (await allOperations()).operations.filter((each) => each.name.toLowerCase().includes(text));
  return found.sort((one, other) => one.name.length - other.name.length).slice(0, NAMED)
    .map((each) => ({ href: `#/tools/${encodeURIComponent(each.name)}`, name: each.name, about: each.title || "operation" }));
}

// The arrows go from the field or the heading to the hits, and from hit to hit.
function useArrows(list) {
  useEffect(() => {
    const pressed = (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const { activeElement: at } = document;
      if (!step || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || !list.current) return;
      const hits = [...list.current.querySelectorAll("a.hit")];
      const place = hits.indexOf(at);
      const before = at === document.body || at.tagName === "H1" || at.id === "search-everything";
      if (!hits.length || (place < 0 && !(before && step > 0))) return;
      event.preventDefault();
      const next = hits[place + step];
      if (next) next.focus();
      else if (step < 0) document.getElementById("search-everything")?.focus();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Results({ query = "", corpora = "", unlikely = "" }) {
  const chosen = corpora ? corpora.split(",") : Object.keys(CORPORA);
  const list = useRef();
  const views = useViews();
  const set = (more) => go("/search", { query, corpora, unlikely, ...more });
  const toggle = (corpus) => {
    const next = chosen.includes(corpus) ? chosen.filter((each) => each !== corpus) : [...chosen, corpus];
    set({ corpora: next.length === Object.keys(CORPORA).length ? "" : next.join(",") });
  };
  const work = useWork(() => (query ? passages(query, corpora ? chosen : [], unlikely) : null), [query, corpora, unlikely]);
  const files = useWork(() => (query ? filesNamed(query) : { entries: [], total: 0 }), [query]);
  const named = useWork(() => (query ? operationsNamed(query) : []), [query]);
  const titled = query ? views.filter((each) => each.title.toLowerCase().includes(query.trim().toLowerCase()))
    .map((each) => ({ href: `#/${each.name}`, name: each.title, about: "view" })) : [];
  useArrows(list);
  return html`<${Title}>Search<//>
    <div class="row" role="group" aria-label="Filters">${Object.entries(CORPORA).map(([corpus, name]) => html`
      <label key=${corpus}><input type="checkbox" checked=${chosen.includes(corpus)} onChange=${() => toggle(corpus)} /> ${name}</label>`)}
      <label><input type="checkbox" checked=${Boolean(unlikely)} onChange=${(event) => set({ unlikely: event.target.checked ? "yes" : "" })} /> Also unlikely ones</label></div>
    ${query ? html`<div class="columns results" ref=${list}><section aria-label="Passages" aria-busy=${work.busy}>
        <${Loaded} work=${work}>${(found) => html`<${Passages} found=${found} query=${query} />`}<//></section>
      <section aria-label="Names"><${Files} work=${files} query=${query} /><${Names} found=${[...titled, ...(named.value || [])]} /></section></div>`
      : html`<${Nothing}>Notes, documents, conversations and memories are searched together, by words and by meaning; files, views and operations
        by their names. Press <kbd>/</kbd> in any view, write, and press Enter.<//>`}`;
}

function Passages({ found, query }) {
  if (!found) return "";
  return html`<p class="quiet" role="status">${found.nearest
      ? (found.count ? `No likely passage; the nearest ${found.count === 1 ? "one" : found.count} instead.` : "No passage.")
      : `${plural(found.count, "passage")} in ${found.tookMs.toFixed(0)} ms${found.unlikely ? `, ${found.unlikely} unlikely ones left out` : ""}. ${found.note || ""}`}
      ${found.degraded.map((each) => html`<span class="busy" key=${each}> ${each}.</span>`)}</p>
    ${found.results.map((hit, index) => html`<${Passage} key=${`${hit.corpus}${hit.id}${index}`} hit=${hit} query=${query} unlikely=${found.nearest} />`)}`;
}

// Notes had their place here once.
function Moved({ id }) {
  useEffect(() => location.replace(`#/notes/note/${encodeURIComponent(id)}`), [id]);
  return html`<${Nothing}>The note is at <a href=${`#/notes/note/${encodeURIComponent(id)}`}>Notes</a>.<//>`;
}
