// What takes the space: treemap with its table, duplicates, growth, thumbnails, and the trash.
import { html, useEffect, useState } from "../lib.js";
import { call } from "../api.js";
import { Growth } from "../disk/growth.js";
import { FolderMap, Picture } from "../disk/map.js";
import { More, usePages } from "../paged.js";
import { Action, Loaded, Nothing, Table, Tabs, Time, Title, bytes, number, plural, span, useWork } from "../ui.js";

export const title = "Disk";
export const order = 40;

const PARTS = { map: "Map", duplicates: "Duplicates", growth: "Growth", pictures: "Pictures", jobs: "Scans", trash: "Trash" };

export function View({ parts, parameters }) {
  const part = parts[0] || "map";
  const disks = useWork(() => call("disk_free"), []);
  const roots = (disks.value?.fileSystems || []).flatMap((each) => each.roots);
  const path = parameters.path || roots[0] || "";
  const address = (name) => `#/disk/${name}?path=${encodeURIComponent(path)}`;
  return html`<${Title}>Disk<//>
    <${Tabs} label="Parts of the disk" current=${address(part)} tabs=${Object.entries(PARTS).map(([name, text]) => [address(name), text])} />
    <${Loaded} work=${disks}>${({ fileSystems }) => (roots.length ? html`
      <p class="quiet">${fileSystems.map((each) => `${each.path}: ${bytes(each.free)} of ${bytes(each.size)} free`).join("; ")}</p>
      ${!["trash", "jobs"].includes(part) && html`<${Crumbs} path=${path} roots=${roots} part=${part} />`}
      ${part === "map" && html`<${FolderMap} key=${path} path=${path} file=${parameters.file} measure=${parameters.measure} />`}
      ${part === "duplicates" && html`<${Duplicates} path=${path} />`}
      ${part === "growth" && html`<${Growth} path=${path} since=${parameters.since} />`}
      ${part === "pictures" && html`<${Pictures} path=${path} />`}
      ${part === "jobs" && html`<${Jobs} />`}
      ${part === "trash" && html`<${Trash} />`}` : html`<${Nothing}>There are no roots: <code>linckia serve FOLDER</code> names them.<//>`)}<//>`;
}

function Crumbs({ path, roots, part }) {
  const root = roots.filter((each) => path === each || path.startsWith(`${each}/`)).sort((one, other) => other.length - one.length)[0] || path;
  const below = path.slice(root.length).split("/").filter(Boolean);
  const places = [root, ...below.map((_, index) => `${root}/${below.slice(0, index + 1).join("/")}`)];
  return html`<nav class="row" aria-label="Folder">${places.map((place, index) => html`${index ? "/" : ""}
      <a key=${place} href=${`#/disk/${part}?path=${encodeURIComponent(place)}`} aria-current=${place === path ? "location" : undefined}>${index ? place.split("/").pop() : place}</a>`)}
    ${roots.filter((each) => each !== root).map((each) => html`<a class="badge" key=${each} href=${`#/disk/${part}?path=${encodeURIComponent(each)}`}>${each}</a>`)}
    <${Index} path=${path} /></nav>`;
}

const Index = ({ path }) => html`<${Action} act=${async () => {
  const { files, durationMs } = await call("index", { path, async: false, maxAge: 0 });
  return `${plural(files, "file")} in ${durationMs} ms`;
}}>Scan again<//>`;

const FEW = 10_000;

// All files of equal size are read, which takes long in a large folder.
function Duplicates({ path }) {
  const [asked, ask] = useState("");
  const work = useWork(() => call("disk_map", { path, limit: 1 }), [path]);
  return html`<${Loaded} work=${work}>${({ files }) => (files <= FEW || asked === path ? html`<${Equal} path=${path} />` : html`
    <p>This compares the contents of ${number(files)} files, which takes a while. A folder with fewer files is faster.</p>
    <button class="main" onClick=${() => ask(path)}>Find equal files</button>`)}<//>`;
}

function Equal({ path }) {
  const work = useWork(() => call("files_duplicates", { path, limit: 200 }), [path]);
  return html`<${Loaded} work=${work}>${({ groups, wasted, total }) => html`
    <p>${plural(total, "group")} of equal files; ${bytes(wasted)} could be freed.${total > groups.length ? ` The ${groups.length} most wasteful are shown.` : ""}</p>
    ${groups.map((group) => html`<div class="card" key=${group.paths[0]}><h2>${bytes(group.size)} × ${group.paths.length}</h2>
      <ul class="plain">${group.paths.map((each, index) => html`<li class="row" key=${each}><code>${each}</code>
        ${index > 0 && html`<${Action} label=${`Delete ${each}`} confirm=${`Delete ${each}? It goes to the trash.`}
          act=${async () => { await call("files_delete", { paths: [each] }); return "in the trash"; }}>Delete<//>`}</li>`)}</ul></div>`)}`}<//>`;
}

function Pictures({ path }) {
  const work = useWork(async () => {
    const { entries } = await call("disk_top_files", { path, limit: 500 });
    const pictures = entries.filter((each) => /\.(png|jpe?g|gif|webp|bmp|tiff?|heic|mp4|mkv|webm|mov)$/i.test(each.name)).slice(0, 40);
    return Promise.all(pictures.map(async (each) => ({ ...each, ...(await call("inspect", { path: each.path })) })));
  }, [path]);
  return html`<${Loaded} work=${work}>${(found) => (found.length ? html`<ul class="plain thumbs">${found.map((each) => html`<li key=${each.path}>
    ${each.thumbnailUri ? html`<${Picture} url=${each.thumbnailUri} name=${each.path} />` : html`<span class="quiet">no preview</span>`}
    <br /><span class="quiet">${each.name}, ${bytes(each.size)}</span></li>`)}</ul>` : html`<${Nothing}>No pictures or videos among the largest 500 files below this folder.<//>`)}<//>`;
}

function Jobs() {
  const work = useWork(() => call("jobs_list", { limit: 100 }), []);
  const active = work.value?.jobs.some((each) => ["pending", "running"].includes(each.status));
  useEffect(() => {
    if (!active) return undefined;
    const timer = setInterval(work.again, 2000);
    return () => clearInterval(timer);
  }, [active]);
  const left = (job) => {
    const passed = (Date.now() - Date.parse(job.startedAt)) / 1000;
    return job.status === "running" && job.progress > 0 ? span((passed * (100 - job.progress)) / job.progress) : "";
  };
  return html`<${Loaded} work=${work}>${({ jobs }) => html`<${Table} caption="Scans" rows=${jobs} keyOf=${(row) => row.jobId} empty="No folder has been scanned yet." columns=${[
    { key: "root", title: "Folder" }, { key: "status", title: "State" },
    { key: "progress", title: "Progress", cell: (row) => html`<progress max="100" value=${row.progress} aria-label=${`Scan of ${row.root}`}></progress>` },
    { key: "left", title: "Left", right: true, cell: left }, { key: "files", title: "Files", right: true, cell: (row) => number(row.files) },
    { key: "totalSize", title: "Size", right: true, cell: (row) => bytes(row.totalSize) }, { key: "createdAt", title: "Begun", cell: (row) => html`<${Time} at=${row.createdAt} />` },
    { key: "act", cell: (row) => row.status === "running" && html`<${Action} label=${`Cancel the scan of ${row.root}`} act=${async () => { await call("jobs_cancel", { jobId: row.jobId }); work.again(); }}>Cancel<//>` },
  ]} />`}<//>`;
}

function Trash() {
  const work = useWork(() => call("trash_list", { limit: 200 }), []);
  const restore = (item) => async () => { await call("trash_restore", { items: [{ trashId: item.trashId }] }); work.again(); };
  return html`<${Loaded} work=${work}>${({ items, total }) => html`
    <div class="row"><p>${plural(total, "item")} in the trash, ${bytes(items.reduce((sum, each) => sum + each.size, 0))}.</p>
      ${total > 0 && html`<${Action} confirm="Delete everything in the trash for good?" act=${async () => { await call("trash_empty", { olderThanDays: 0 }); work.again(); }}>Empty the trash<//>`}</div>
    <${Table} caption="Trash" rows=${items} keyOf=${(row) => row.trashId} empty="The trash is empty." columns=${[
      { key: "path", title: "Was at" }, { key: "size", title: "Size", right: true, cell: (row) => bytes(row.size) },
      { key: "deletedAt", title: "Deleted", cell: (row) => html`<${Time} at=${row.deletedAt} />` },
      { key: "act", cell: (row) => html`<${Action} label=${`Restore ${row.path}`} act=${restore(row)}>Restore<//>` }]} />`}<//>`;
}
