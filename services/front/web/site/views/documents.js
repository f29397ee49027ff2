// Stored documents: collections, snapshots and their differences, versions of a file, and the code graph of a symbol.
import { html, useMemo, useState } from "../lib.js";
import { call } from "../api.js";
import { Graph } from "../charts.js";
import { Compare, placeOf } from "../documents/compare.js";
import { File, Version } from "../documents/file.js";
import { More, usePages } from "../paged.js";
import { Highlighted, Loaded, Nothing, SearchForm, Select, Table, Tabs, Time, Title, bytes, go, number, plural, useWork } from "../ui.js";

export const title = "Documents";
export const order = 60;

const TABS = [["#/documents", "Documents"], ["#/documents/collections", "Collections"], ["#/documents/snapshots", "Snapshots"], ["#/documents/graph", "Code graph"]];

export function View({ parts, parameters }) {
  const [part = "", name] = parts;
  if (part === "file") return html`<${File} key=${name} hash=${name} lines=${parameters.lines} symbols=${html`<${Around} query=${{ hash: name }} />`} />`;
  if (part === "version") return html`<${Version} key=${name} hash=${name} path=${parameters.path} />`;
  if (part === "compare") return html`<${Compare} ...${parameters} />`;
  const current = part ? `#/documents/${part}` : "#/documents";
  return html`<${Title}>Documents<//><${Tabs} label="Parts of the documents" tabs=${TABS} current=${current} />
    ${part === "" && html`<${List} ...${parameters} />`}
    ${part === "collections" && html`<${Collections} />`}
    ${part === "snapshots" && html`<${Snapshots} ...${parameters} />`}
    ${part === "graph" && html`<${CodeGraph} ...${parameters} />`}`;
}

const columns = [
  { key: "name", title: "Name", cell: (row) => html`<a href=${`#/documents/file/${row.hash}`}>${row.name}</a>` },
  { key: "path", title: "Path", unsorted: true, wide: true, cell: (row) => html`<span class="quiet">${row.path}</span>` },
  { key: "size", title: "Size", right: true, cell: (row) => bytes(row.size) },
  { key: "mime_type", title: "Type", unsorted: true, wide: true },
  { key: "tags", title: "Tags", unsorted: true, wide: true, cell: (row) => row.tags.join(", ") },
  { key: "indexed", title: "Stored", cell: (row) => html`<${Time} at=${row.indexed} />` },
];

const ORDERS = { name: "name", size: "size", indexed: "indexed" };

function List({ query = "", collection = "" }) {
  const set = (more) => go("/documents", { query, collection, ...more });
  return html`<${SearchForm} label="Words or a question" value=${query} onSearch=${(text) => set({ query: text })} />
    ${query ? html`<${Found} query=${query} collection=${collection} />` : html`<${All} collection=${collection} />`}`;
}

function Found({ query, collection }) {
  const work = useWork(() => call("documents_search", { query, limit: 50, ...(collection && { collection }) }), [query, collection]);
  return html`<${Loaded} work=${work}>${(found) => (found.results.length ? found.results.map((hit, index) => html`<article class="card" key=${index}>
      <h2><a href=${`#/documents/file/${hit.hash}${hit.first_line ? `?lines=${hit.first_line}-${hit.last_line || hit.first_line}` : ""}`}>${hit.name || hit.path || hit.title}</a></h2>
      <p class="text"><${Highlighted} text=${(hit.snippet || "").slice(0, 500)} query=${query} /></p>
      <p class="quiet">${hit.path || ""} ${hit.score != null ? `score ${number(hit.score, 2)}` : ""}</p></article>`) : html`<${Nothing}>${found.note || "Nothing was found."}<//>`)}<//>`;
}

function All({ collection }) {
  const [{ key, descending }, order] = useState({ key: "indexed", descending: true });
  const pages = usePages(async (offset = 0) => {
    const found = await call("documents_list", { limit: 100, offset, sort_by: ORDERS[key], sort_order: descending ? "desc" : "asc", ...(collection && { collection }) });
    return { ...found, items: found.documents, next: found.next_offset };
  }, [collection, key, descending]);
  return html`<${Loaded} work=${pages}>${(found) => html`<p class="quiet">${plural(found.total, "document")}${collection ? ` in ${collection}` : ""}.</p>
    <${Table} caption="Documents" rows=${found.items} keyOf=${(row) => row.id} columns=${columns} sort=${key} descending=${descending}
      onSort=${(by, desc) => order({ key: by, descending: by === key ? desc : by !== "name" })} empty="None yet: linckia add FOLDER stores them." />
    <${More} pages=${pages} total=${found.total} />`}<//>`;
}

function Collections() {
  const work = useWork(() => call("documents_collections"), []);
  return html`<${Loaded} work=${work}>${({ collections }) => html`<${Table} caption="Collections" rows=${collections} keyOf=${(row) => row.name} empty="None: linckia add --collection NAME makes one." columns=${[
    { key: "name", title: "Name", cell: (row) => html`<a href=${`#/documents?collection=${encodeURIComponent(row.name)}`}>${row.name}</a>` },
    ...["documents", "count", "bytes"].filter((key) => collections[0]?.[key] != null).map((key) => ({ key, title: key === "bytes" ? "Size" : "Documents", right: true, cell: (row) => (key === "bytes" ? bytes(row[key]) : number(row[key])) })),
  ]} />`}<//>`;
}

function Snapshots({ before = "", after = "" }) {
  const work = useWork(() => call("documents_snapshots", { limit: 200 }), []);
  const compared = useWork(() => (before && after ? call("documents_compare", { before, after }) : null), [before, after]);
  return html`<${Loaded} work=${work}>${({ snapshots }) => {
    if (!snapshots.length) return html`<${Nothing}>None: each linckia add FOLDER takes one.<//>`;
    const folder = snapshots.find((each) => each.id === after)?.directory;
    const options = [["", "choose one"], ...snapshots.map((each) => [each.id, `${each.label || each.directory.split("/").pop()}, ${new Date(each.created).toLocaleString()}`])];
    return html`<${Table} caption="Snapshots" rows=${snapshots} keyOf=${(row) => row.id} columns=${[
        { key: "id", title: "Id", cell: (row) => html`<code>${row.id}</code>` }, { key: "label", title: "Label", wide: true }, { key: "directory", title: "Folder" },
        { key: "created", title: "Taken", cell: (row) => html`<${Time} at=${row.created} />` }, { key: "files", title: "Files", right: true }, { key: "bytes", title: "Size", right: true, cell: (row) => bytes(row.bytes) }]} />
      <h2>Compare two</h2><div class="row"><${Select} label="Before" value=${before} options=${options} onChange=${(value) => go("/documents/snapshots", { before: value, after })} />
        <${Select} label="After" value=${after} options=${options} onChange=${(value) => go("/documents/snapshots", { before, after: value })} /></div>
      <${Loaded} work=${compared}>${(found) => found && html`${found.truncated && html`<p class="quiet">Each list has 1,000 files at most.</p>`}<p>${plural(found.added.length, "file")} added, ${found.removed.length} removed, ${found.changed.length} changed, ${found.unchanged} unchanged.</p>
        <${Table} caption="Differences" keyOf=${(row) => row.path} empty="The snapshots are equal."
          rows=${["added", "removed", "changed"].flatMap((what) => found[what].map((each) => ({ ...each, what })))} columns=${[
          { key: "what", title: "Change", cell: (row) => html`<span class=${{ added: "good", removed: "bad", changed: "busy" }[row.what]}>${row.what}</span>` },
          { key: "path", title: "Path", cell: (row) => (row.what === "changed" ? html`<a href=${placeOf(`${folder}/${row.path}`, row.before_hash, row.after_hash)}>${row.path}</a>` : row.path) }, { key: "before_bytes", title: "Before", right: true, cell: (row) => bytes(row.before_bytes) }, { key: "after_bytes", title: "After", right: true, cell: (row) => bytes(row.after_bytes) }]} />`}<//>`;
  }}<//>`;
}

function CodeGraph({ name = "", key = "", depth = "1" }) {
  const types = useWork(() => call("documents_graph", { list_types: true }), []);
  return html`<${SearchForm} label="Name of a file" value=${name} button="Show" onSearch=${(text) => go("/documents/graph", { name: text, depth })} />
    <${Loaded} work=${types}>${({ node_type_counts: counts }) => html`<p class="quiet">${Object.entries(counts || {}).map(([type, count]) => plural(count, type)).join(", ") || "No code is stored yet."}</p>`}<//>
    <${Select} label="Steps" value=${depth} options=${["1", "2", "3"]} onChange=${(value) => go("/documents/graph", { name, key, depth: value })} />
    ${(name || key) && html`<${Around} query=${{ ...(key ? { node_key: key } : { name }), depth: Number(depth) }} />`}`;
}

function Around({ query }) {
  const work = useWork(() => call("documents_graph", { depth: 1, limit: 1000, ...query }), [JSON.stringify(query)]);
  return html`<${Loaded} work=${work}>${(found) => (found.origin ? html`<${Drawn} found=${found} />` : html`<${Nothing}>It is not in the code graph.<//>`)}<//>`;
}

function Drawn({ found }) {
  const { nodes, edges } = useMemo(() => {
    const all = [found.origin, ...found.connected_nodes].map((each) => ({ ...each, id: each.node_key, known: each.type !== "module" }));
    const places = new Map(all.map((each, index) => [each.id, index]));
    const pairs = (found.edges || []).map((each) => [places.get(each.source), places.get(each.target)]).filter(([one, other]) => one !== undefined && other !== undefined);
    return { nodes: all, edges: pairs };
  }, [found]);
  const open = (node) => go("/documents/graph", { key: node.node_key });
  return html`<${Graph} nodes=${nodes} edges=${edges} label=${`Code around ${found.origin.label}`} onOpen=${open} />
    <${Table} caption="Symbols" rows=${found.connected_nodes} keyOf=${(row) => row.node_key} empty="Nothing is connected to it." columns=${[
      { key: "label", title: "Name", cell: (row) => html`<button class="link" onClick=${() => open(row)}>${row.label}</button>` }, { key: "type", title: "Type" },
      { key: "distance", title: "Steps", right: true }, { key: "line", title: "Line", right: true }]} />`;
}
