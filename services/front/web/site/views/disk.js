// What takes the space: treemap with its table, duplicates, growth, thumbnails, and the trash.
import { html, useEffect, useState } from "../lib.js";
import { call, file } from "../api.js";
import { Treemap } from "../charts.js";
import { Action, Facts, Loaded, Nothing, Table, Tabs, Time, Title, bytes, go, number, plural, span, useWork } from "../ui.js";

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
      ${part === "map" && html`<${Map_} key=${path} path=${path} />`}
      ${part === "duplicates" && html`<${Duplicates} path=${path} />`}
      ${part === "growth" && html`<${Growth} path=${path} />`}
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

async function listed(path) {
  const { entries, total, hasMore } = await call("navigate", { path, sort: "size", desc: true, limit: 500 });
  return { total, hasMore, items: entries.map((each) => ({ ...each, size: each.size || 0, folder: each.kind === "directory" })) };
}

function Map_({ path }) {
  const work = useWork(async () => {
    const found = await listed(path).catch(async (error) => {
      if (!/not indexed/.test(error.message)) throw error;
      await call("index", { path, async: false });
      return listed(path);
    });
    // The map also shows what is in the largest folders.
    const folders = found.items.filter((each) => each.folder && each.size > 0).slice(0, 24);
    await Promise.all(folders.map(async (folder) => { folder.children = (await listed(folder.path)).items; }));
    return found;
  }, [path]);
  const [chosen, choose] = useState(null);
  return html`<${Loaded} work=${work}>${({ items, total, hasMore }) => {
    const sum = items.reduce((found, each) => found + each.size, 0);
    const show = (item) => (item.folder ? go("/disk/map", { path: item.path }) : choose(item.path));
    return html`<div class="columns"><section><${Treemap} items=${items} label=${`Contents of ${path}`} onOpen=${show} />
      ${chosen && html`<${File} path=${chosen} again=${work.again} />`}</section>
      <section><p class="quiet">${bytes(sum)} in ${plural(total, "entry", "entries")}${hasMore ? `; the largest ${items.length} are shown` : ""}</p>
      <${Table} caption=${`Contents of ${path}`} rows=${items} keyOf=${(row) => row.path} sort="size" descending empty="This folder is empty." columns=${[
        { key: "name", title: "Name", cell: (row) => html`<button class="link" onClick=${() => show(row)}>${row.name}${row.folder ? "/" : ""}</button>` },
        { key: "size", title: "Size", right: true, cell: (row) => bytes(row.size) },
        { key: "share", title: "Share", value: (row) => row.size, cell: (row) => html`<span class="bar" style=${{ width: `${sum ? (row.size / sum) * 100 : 0}%` }}></span>` },
        { key: "mtime", title: "Changed", wide: true, cell: (row) => html`<${Time} at=${row.mtime} />` },
      ]} /></section></div>`;
  }}<//>`;
}

function File({ path, again }) {
  const work = useWork(() => call("inspect", { path }), [path]);
  return html`<${Loaded} work=${work}>${(found) => html`<div class="card"><h2>${path.split("/").pop()}</h2>
    ${found.thumbnailUri && html`<div class="thumbs"><${Picture} url=${found.thumbnailUri} name=${path} /></div>`}
    <${Facts} facts=${{ path, size: bytes(found.size), type: found.mimeType, changed: html`<${Time} at=${found.modifiedAt} />`, ...details(found.metadata) }} />
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

function Duplicates({ path }) {
  const work = useWork(() => call("files_duplicates", { path, limit: 200 }), [path]);
  return html`<${Loaded} work=${work}>${({ groups, wasted, total }) => html`
    <p>${plural(total, "group")} of equal files; ${bytes(wasted)} could be freed.</p>
    ${groups.map((group) => html`<div class="card" key=${group.paths[0]}><h2>${bytes(group.size)} × ${group.paths.length}</h2>
      <ul class="plain">${group.paths.map((each, index) => html`<li class="row" key=${each}><code>${each}</code>
        ${index > 0 && html`<${Action} label=${`Delete ${each}`} confirm=${`Delete ${each}? It goes to the trash.`}
          act=${async () => { await call("files_delete", { paths: [each] }); return "in the trash"; }}>Delete<//>`}</li>`)}</ul></div>`)}`}<//>`;
}

function Growth({ path }) {
  const [since, setSince] = useState("");
  const work = useWork(() => call("disk_compare", { path, depth: 3, limit: 100, ...(since && { since }) }), [path, since]);
  return html`<${Loaded} work=${work}>${(found) => html`
    <div class="row"><label>Since the scan of <select value=${since} onChange=${(event) => setSince(event.target.value)}>
      <option value="">the first one kept</option>${found.scans.map((each) => html`<option key=${each} value=${each}>${new Date(each).toLocaleString()}</option>`)}</select></label></div>
    <p>${bytes(found.before)} before, ${bytes(found.after)} now: ${found.change >= 0 ? "+" : ""}${bytes(found.change)};
      ${" "}${number(found.filesBefore)} and ${number(found.filesAfter)} files.</p>
    <${Table} caption="Folders that changed" rows=${found.directories} keyOf=${(row) => row.path} sort="change" descending empty="No folder has changed between these scans." columns=${[
      { key: "path", title: "Folder" }, { key: "before", title: "Before", right: true, cell: (row) => bytes(row.before) },
      { key: "after", title: "After", right: true, cell: (row) => bytes(row.after) }, { key: "change", title: "Change", right: true, cell: (row) => bytes(row.change) }]} />`}<//>`;
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
  useEffect(() => {
    const timer = setInterval(work.again, 2000);
    return () => clearInterval(timer);
  }, []);
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
