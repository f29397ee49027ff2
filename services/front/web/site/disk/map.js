// A folder as a treemap with a table of its entries, and one file.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { call, file } from "../api.js";
import { More, usePages } from "../paged.js";
import { Treemap } from "../treemap.js";
import { Action, Facts, Loaded, Select, Table, Time, bytes, go, plural, useWork } from "../ui.js";

const PAGE = 500;
const MEASURES = [["apparent", "length of the files"], ["disk", "space on the disk"]];

const below = (folder, name) => `${folder === "/" ? "" : folder}/${name}`;

function itemOf(folder, measure) {
  return (each) => {
    const path = below(folder, each.name);
    const size = measure === "disk" ? each.diskSize : each.size;
    return { ...each, path, size, other: measure === "disk" ? each.size : each.diskSize, folder: each.kind === "directory", children: each.inside?.map(itemOf(path, measure)) };
  };
}

async function page(path, measure, sort, desc, offset = 0) {
  const asked = { path, measure, sort, desc, limit: PAGE, offset, inside: offset ? 0 : 24 };
  const found = await call("disk_map", asked).catch(async (error) => {
    if (!/not indexed/.test(error.message)) throw error;
    await call("index", { path, async: false });
    return call("disk_map", asked);
  });
  return { ...found, items: found.entries.map(itemOf(found.path, measure)), next: found.nextOffset };
}

// `file` is the path of one that is shown too.
export function FolderMap({ path, file: named = "", measure = "apparent" }) {
  const [{ key: sort, descending }, order] = useState({ key: "size", descending: true });
  const largest = useWork(() => page(path, measure, "size", true), [path, measure]);
  const bySize = sort === "size" && descending;
  const pages = usePages((offset) => (bySize && offset === undefined ? largest.value : page(path, measure, sort, descending, offset)), [largest.value, sort, descending]);
  const set = (more) => go("/disk/map", { path, measure: measure === "apparent" ? "" : measure, ...more });
  const show = (item) => (item.folder ? go("/disk/map", { path: item.path, measure: measure === "apparent" ? "" : measure }) : set({ file: item.path }));
  return html`<${Loaded} work=${largest}>${(found) => html`
    <div class="row"><p><b>${bytes(found.size)}</b> in ${plural(found.files, "file")} and ${plural(found.directories, "folder")} below, which take <b>${bytes(found.diskSize)}</b> on
      the disk. <span class="quiet">Scanned <${Time} at=${found.scannedAt} />.</span></p>
      <${Select} label="Sizes by" value=${measure} options=${MEASURES} onChange=${(value) => set({ file: named, measure: value === "apparent" ? "" : value })} /></div>
    <div class="columns"><section><${Treemap} items=${found.items} label=${`Contents of ${path}`} onOpen=${show} />
      ${named && html`<${File} key=${named} path=${named} again=${largest.again} />`}</section>
      <section><${Entries} pages=${pages} path=${path} whole=${measure === "disk" ? found.diskSize : found.size} measure=${measure} show=${show}
        sort=${sort} descending=${descending} order=${order} /></section></div>`}<//>`;
}

function Entries({ pages, path, whole, measure, show, sort, descending, order }) {
  const columns = useMemo(() => [
    { key: "name", title: "Name", cell: (row) => html`<button class="link" onClick=${() => show(row)}><bdi>${row.name}</bdi>${row.folder ? "/" : ""}</button>` },
    { key: "size", title: measure === "disk" ? "On the disk" : "Size", right: true, cell: (row) => bytes(row.size) },
    { key: "share", title: "Share", unsorted: true, cell: (row) => html`<span class="bar" style=${{ width: `${whole ? Math.min(100, (row.size / whole) * 100) : 0}%` }}></span>` },
    { key: "other", title: measure === "disk" ? "Size" : "On the disk", unsorted: true, right: true, wide: true, cell: (row) => bytes(row.other) },
    { key: "mtime", title: "Changed", wide: true, cell: (row) => html`<${Time} at=${row.mtime} />` },
  ], [path, measure, whole]);
  // The sizes of folders include everything below them.
  return html`<${Loaded} work=${pages}>${(found) => found && html`<p class="quiet">${plural(found.total, "entry", "entries")}. Folders are shown with all that is below them.</p>
    <${Table} caption=${`Contents of ${path}`} rows=${found.items} keyOf=${(row) => row.path} sort=${sort} descending=${descending}
      onSort=${(key, desc) => order({ key, descending: key === sort ? desc : key !== "name" })} empty="This folder is empty." columns=${columns} />
    <${More} pages=${pages} total=${found.total} />`}<//>`;
}

function File({ path, again }) {
  const work = useWork(() => call("inspect", { path }), [path]);
  const card = useRef();
  useEffect(() => { card.current?.focus(); card.current?.scrollIntoView({ block: "nearest" }); }, [work.value]);
  return html`<${Loaded} work=${work}>${(found) => html`<div class="card" ref=${card} tabindex="-1"><h2><bdi>${path.split("/").pop()}</bdi></h2>
    ${found.thumbnailUri && html`<div class="thumbs"><${Picture} url=${found.thumbnailUri} name=${path} /></div>`}
    <${Facts} facts=${{ path, size: bytes(found.size), "on the disk": bytes(found.diskSize), type: found.mimeType, changed: html`<${Time} at=${found.modifiedAt} />`, ...details(found.metadata) }} />
    <p><${Action} confirm=${`Delete ${path}? It goes to the trash.`} act=${async () => { await call("files_delete", { paths: [path] }); again(); return "in the trash"; }}>Delete<//></p></div>`}<//>`;
}

function details(metadata = []) {
  const found = metadata.find((each) => each.type === "metadata")?.metadata || {};
  return Object.fromEntries(Object.entries(found).filter(([, value]) => typeof value !== "object").slice(0, 12));
}

// A picture that needs the token, so that it cannot be an ordinary image.
export function Picture({ url, name }) {
  const [source, set] = useState("");
  useEffect(() => {
    let address = "";
    file(new URL(url).searchParams.get("path")).then((blob) => { address = URL.createObjectURL(blob); set(address); }, () => {});
    return () => URL.revokeObjectURL(address);
  }, [url]);
  return source && html`<img src=${source} alt=${`Preview of ${name.split("/").pop()}`} />`;
}
