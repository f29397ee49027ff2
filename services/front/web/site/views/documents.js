// Stored documents: collections, snapshots and their differences, versions of a file, and the code graph of a symbol.
import { html, useMemo } from "../lib.js";
import { call } from "../api.js";
import { Graph } from "../charts.js";
import { Facts, Highlighted, Loaded, Nothing, SearchForm, Select, Table, Tabs, Time, Title, bytes, go, number, plural, useWork } from "../ui.js";

export const title = "Documents";
export const order = 60;

const TABS = [["#/documents", "Documents"], ["#/documents/collections", "Collections"], ["#/documents/snapshots", "Snapshots"], ["#/documents/graph", "Code graph"]];

export function View({ parts, parameters }) {
  const [part = "", name] = parts;
  if (part === "file") return html`<${File} key=${name} hash=${name} />`;
  const current = part ? `#/documents/${part}` : "#/documents";
  return html`<${Title}>Documents<//><${Tabs} label="Parts of the documents" tabs=${TABS} current=${current} />
    ${part === "" && html`<${List} ...${parameters} />`}
    ${part === "collections" && html`<${Collections} />`}
    ${part === "snapshots" && html`<${Snapshots} ...${parameters} />`}
    ${part === "graph" && html`<${Code} ...${parameters} />`}`;
}

const columns = [
  { key: "name", title: "Name", cell: (row) => html`<a href=${`#/documents/file/${row.hash}`}>${row.name}</a>` },
  { key: "path", title: "Path", wide: true, cell: (row) => html`<span class="quiet">${row.path}</span>` },
  { key: "size", title: "Size", right: true, cell: (row) => bytes(row.size) },
  { key: "mime_type", title: "Type", wide: true },
  { key: "tags", title: "Tags", wide: true, cell: (row) => row.tags.join(", ") },
  { key: "indexed", title: "Stored", cell: (row) => html`<${Time} at=${row.indexed} />` },
];

function List({ query = "", collection = "", offset = "0" }) {
  const work = useWork(() => (query ? call("documents_search", { query, limit: 50, ...(collection && { collection }) })
    : call("documents_list", { limit: 100, offset: Number(offset), ...(collection && { collection }) })), [query, collection, offset]);
  const set = (more) => go("/documents", { query, collection, offset: 0, ...more });
  return html`<${SearchForm} label="Words or a question" value=${query} onSearch=${(text) => set({ query: text })} />
    <${Loaded} work=${work}>${(found) => (found.results ? found.results.map((hit, index) => html`<article class="card" key=${index}>
        <h2><a href=${`#/documents/file/${hit.hash}`}>${hit.name || hit.path || hit.title}</a></h2><p class="text"><${Highlighted} text=${(hit.snippet || hit.text || "").slice(0, 500)} query=${query} /></p>
        <p class="quiet">${hit.path || ""} ${hit.score != null ? `score ${number(hit.score, 2)}` : ""}</p></article>`)
      : html`<p class="quiet">${plural(found.total, "document")}${collection ? ` in ${collection}` : ""}.</p>
        <${Table} caption="Documents" rows=${found.documents} keyOf=${(row) => row.id} columns=${columns} empty="None yet: linckia add FOLDER stores them." />
        ${found.next_offset != null && html`<button onClick=${() => set({ offset: found.next_offset })}>Next page</button>`}`)}<//>`;
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
    const options = [["", "choose one"], ...snapshots.map((each) => [each.id, `${each.label || each.directory.split("/").pop()}, ${new Date(each.created).toLocaleString()}`])];
    return html`<${Table} caption="Snapshots" rows=${snapshots} keyOf=${(row) => row.id} columns=${[
        { key: "id", title: "Id", cell: (row) => html`<code>${row.id}</code>` }, { key: "label", title: "Label", wide: true }, { key: "directory", title: "Folder" },
        { key: "created", title: "Taken", cell: (row) => html`<${Time} at=${row.created} />` }, { key: "files", title: "Files", right: true }, { key: "bytes", title: "Size", right: true, cell: (row) => bytes(row.bytes) }]} />
      <h2>Compare two</h2><div class="row"><${Select} label="Before" value=${before} options=${options} onChange=${(value) => go("/documents/snapshots", { before: value, after })} />
        <${Select} label="After" value=${after} options=${options} onChange=${(value) => go("/documents/snapshots", { before, after: value })} /></div>
      <${Loaded} work=${compared}>${(found) => found && html`<p>${plural(found.added.length, "file")} added, ${found.removed.length} removed, ${found.changed.length} changed, ${found.unchanged} unchanged.</p>
        <${Table} caption="Differences" keyOf=${(row) => row.path} empty="The snapshots are equal."
          rows=${["added", "removed", "changed"].flatMap((what) => found[what].map((each) => ({ ...each, what })))} columns=${[
          { key: "what", title: "Change", cell: (row) => html`<span class=${{ added: "good", removed: "bad", changed: "busy" }[row.what]}>${row.what}</span>` },
          { key: "path", title: "Path" }, { key: "before_bytes", title: "Before", right: true, cell: (row) => bytes(row.before_bytes) }, { key: "after_bytes", title: "After", right: true, cell: (row) => bytes(row.after_bytes) }]} />`}<//>`;
  }}<//>`;
}

function File({ hash }) {
  const work = useWork(() => call("documents_get", { hash, include_content: true, length: 200_000 }), [hash]);
  return html`<p><a href="#/documents">Documents</a></p>
    <${Loaded} work=${work}>${(found) => html`<${Title}>${found.name}<//>
      <${Facts} facts=${{ path: found.path, size: bytes(found.size), type: found.mime_type, tags: found.tags.join(", "), collections: found.collections.join(", "),
        stored: html`<${Time} at=${found.indexed} />`, hash: html`<code>${found.hash}</code>`, "other places": found.paths?.filter((each) => each !== found.path).join(", ") }} />
      <div class="columns"><section><h2>Content</h2>${found.content != null && found.content_encoding !== "base64" ? html`<pre tabindex="0" aria-label="Content">${found.content}</pre>${found.content_truncated && html`<p class="quiet">The beginning is shown.</p>`}`
        : html`<${Nothing}>${found.text_problem || "It is not text."}<//>`}</section>
      <section>${found.path && html`<h2>Versions</h2><${Versions} path=${found.path} current=${found.hash} />`}
        <h2>Symbols</h2><${Around} query=${{ hash }} /></section></div>`}<//>`;
}

// Snapshots hold the earlier versions, which have no address of their own.
function Versions({ path, current }) {
  const work = useWork(() => call("documents_versions", { path }), [path]);
  return html`<${Loaded} work=${work}>${({ versions }) => html`<${Table} caption="Versions" rows=${versions} keyOf=${(row) => row.hash} empty="No snapshot holds this file." columns=${[
    { key: "modified", title: "Modified", cell: (row) => html`<${Time} at=${row.modified} />` }, { key: "size", title: "Size", right: true, cell: (row) => bytes(row.size) },
    { key: "hash", title: "Content", cell: (row) => html`<code>${row.hash.slice(0, 12)}</code>${row.hash === current ? " (shown)" : ""}` },
    { key: "snapshots", title: "Snapshots", cell: (row) => row.snapshots.map((id) => html`<code key=${id}>${id} </code>`) }]} />
    <p class="quiet">To get a version back: <code>linckia checkout FOLDER --snapshot ID</code>.</p>`}<//>`;
}

function Code({ name = "", key = "", depth = "1" }) {
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
