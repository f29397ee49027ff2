// A stored file with its content and versions, and a version alone.
import { html } from "../lib.js";
import { call } from "../api.js";
import { Code } from "../code.js";
import { More, usePages } from "../paged.js";
import { Facts, Loaded, Nothing, Table, Time, Title, bytes, useWork } from "../ui.js";
import { placeOf } from "./compare.js";

const PART_BYTES = 100_000;

// `lines` are marked, such as 12-30.
export function Content({ hash, name, lines = "" }) {
  const [from = 0, to = from] = lines.split("-").map(Number);
  const pages = usePages(async (offset = 0) => {
    const found = await call("documents_version", { hash, offset, length: PART_BYTES });
    return { items: [found.content], next: found.next_offset, ...found };
  }, [hash]);
  return html`<${Loaded} work=${pages}>${(found) => (found.encoding === "base64" ? html`<${Nothing}>It is not text.<//>` : html`
    <${Code} text=${found.items.join("")} name=${name} label="Content" from=${from} to=${to} />
    ${pages.next != null && html`<p class="quiet">The beginning is shown, of ${bytes(found.size)}.</p>`}<${More} pages=${pages} />`)}<//>`;
}

// `symbols` shows what the code graph knows about the file.
export function File({ hash, lines, symbols }) {
  const work = useWork(() => call("documents_get", { hash }), [hash]);
  return html`<p><a href="#/documents">Documents</a></p>
    <${Loaded} work=${work}>${(found) => html`<${Title}><bdi>${found.name}</bdi><//>
      <${Facts} facts=${{ path: found.path, size: bytes(found.size), type: found.mime_type, tags: found.tags.join(", "), collections: found.collections.join(", "),
        stored: html`<${Time} at=${found.indexed} />`, hash: html`<code>${found.hash}</code>`, "other places": found.paths?.filter((each) => each !== found.path).join(", ") }} />
      <div class="columns"><section><h2>Content</h2>${found.text_problem && html`<p class="quiet">${found.text_problem}</p>`}<${Content} hash=${found.hash} name=${found.name} lines=${lines} /></section>
      <section>${found.path && html`<h2>Versions</h2><${Versions} path=${found.path} current=${found.hash} />`}
        <h2>Symbols</h2>${symbols}</section></div>`}<//>`;
}

export function Version({ hash, path = "" }) {
  return html`<p><a href=${placeOf(path)}>All versions</a></p><${Title}>A version of <bdi>${path.split("/").pop()}</bdi><//>
    <${Facts} facts=${{ path, hash: html`<code>${hash}</code>` }} /><h2>Content</h2><${Content} hash=${hash} name=${path} />`;
}

function Versions({ path, current }) {
  const work = useWork(() => call("documents_versions", { path }), [path]);
  return html`<${Loaded} work=${work}>${({ versions }) => html`${versions.length > 1 && html`<p><a href=${placeOf(path)}>Compare versions</a></p>`}
    <${Table} caption="Versions" rows=${versions} keyOf=${(row) => row.hash} empty="No snapshot holds this file." columns=${[
      { key: "modified", title: "Modified", cell: (row) => html`<${Time} at=${row.modified} />` }, { key: "size", title: "Size", right: true, cell: (row) => bytes(row.size) },
      { key: "hash", title: "Content", cell: (row) => html`<a href=${`#/documents/version/${row.hash}?path=${encodeURIComponent(path)}`}><code>${row.hash.slice(0, 12)}</code></a>${row.hash === current ? " (shown)" : ""}` },
      { key: "changes", title: "Changes", unsorted: true, cell: (row) => { const older = versions[versions.indexOf(row) + 1]; return older ? html`<a href=${placeOf(path, older.hash, row.hash)} aria-label=${`Changes of ${row.hash.slice(0, 12)}`}>changes</a>` : "first"; } },
      { key: "snapshots", title: "Snapshots", wide: true, cell: (row) => row.snapshots.map((id) => html`<code key=${id}>${id} </code>`) }]} />
    <p class="quiet">To get a version back: <code>linckia checkout FOLDER --snapshot ID</code>.</p>`}<//>`;
}
