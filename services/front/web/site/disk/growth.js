// What grew below a folder since a date: the way to the greatest growth, and the folders in it that changed.
import { html } from "../lib.js";
import { call } from "../api.js";
import { Loaded, Nothing, Select, Table, bytes, go, number, plural, useWork } from "../ui.js";

const signed = (count) => (count > 0 ? "+" : "") + bytes(count);
const shown = (at) => new Date(at).toLocaleString();

// A date means the beginning of its day here.
const instantOf = (since) => (/^\d{4}-\d\d-\d\d$/.test(since) ? new Date(`${since}T00:00`).toISOString() : since);

// While a year is typed, the field already has a value, of the first century.
const dated = (value) => !value || value >= "1970";

export function Growth({ path, since = "" }) {
  const asked = { path, ...(since && { since: instantOf(since) }) };
  const work = useWork(() => call("disk_compare", { ...asked, depth: 1, limit: 500 }), [path, since]);
  // All levels take longer, so they come later.
  const deep = useWork(async () => work.value && { of: work.value, ...(await call("disk_compare", { ...asked, depth: 1000, limit: 1000 })) }, [work.value]);
  const set = (value) => go("/disk/growth", { path, since: value });
  const place = (folder) => `#/disk/growth?${new URLSearchParams({ path: folder, ...(since && { since }) })}`;
  const date = /^\d{4}-\d\d-\d\d$/.test(since) ? since : "";
  return html`<${Loaded} work=${work}>${(found) => html`
    <div class="row"><label>Since <input type="date" value=${date} onChange=${(event) => dated(event.target.value) && set(event.target.value)} /></label>
      <${Select} label="or since the scan of" value=${date ? "" : since} options=${[["", date ? "choose one" : "the one before the last"], ...found.scans.map((each) => [each, shown(each)])]} onChange=${set} /></div>
    <p role="status">${used(found, date)}</p>
    <p><b>${signed(found.change)}</b>: ${bytes(found.before)} then, ${bytes(found.after)} now; ${number(found.filesBefore)} and ${number(found.filesAfter)} files.</p>
    <${Loaded} work=${deep}>${(all) => (all && all.of === found ? html`<${Way} all=${all} place=${place} />` : html`<p class="quiet" role="status">Loading…</p>`)}<//>
    <h2>Folders in it that changed</h2>
    <${Table} caption="Folders that changed" rows=${found.directories.filter((each) => each.path !== found.path)} keyOf=${(row) => row.path} sort="change" descending empty="No folder in it has changed." columns=${[
      { key: "path", title: "Folder", cell: (row) => html`<a href=${place(row.path)}><bdi>${row.path.split("/").pop()}</bdi>/</a>` },
      { key: "change", title: "Change", right: true, cell: (row) => signed(row.change) },
      { key: "before", title: "Then", right: true, wide: true, cell: (row) => bytes(row.before) }, { key: "after", title: "Now", right: true, cell: (row) => bytes(row.after) },
      { key: "files", title: "Files", right: true, wide: true, value: (row) => row.filesAfter - row.filesBefore, cell: (row) => (row.filesAfter > row.filesBefore ? "+" : "") + number(row.filesAfter - row.filesBefore) }]} />
    ${found.hasMore && html`<p class="quiet">The ${found.directories.length} greatest of ${plural(found.total, "change")} are shown.</p>`}`}<//>`;
}

// Which scan was compared.
function used(found, date) {
  if (found.scans.length < 2) return "There is only one scan of this folder yet, so nothing can be compared. Scan again once it has changed.";
  const scan = shown(found.since);
  if (!date) return `Compared with the scan of ${scan}.`;
  return new Date(found.since) <= new Date(`${date}T00:00`) ? `Compared with the scan of ${scan}, the last one before that date.`
    : `No scan is that old. Compared with the first one, of ${scan}.`;
}

// From the folder down to where most of the growth is.
function Way({ all, place }) {
  const found = [];
  const inside = (folder) => all.directories.filter((each) => each.path.slice(0, each.path.lastIndexOf("/")) === (folder === "/" ? "" : folder) && each.path !== folder);
  for (let at = all.path; ;) {
    const next = inside(at).reduce((best, each) => (each.change > (best?.change || 0) ? each : best), null);
    if (!next) break;
    found.push(next);
    at = next.path;
  }
  if (!found.length) return all.change > 0 ? html`<p>It grew by files directly in it.</p>` : html`<${Nothing}>No folder in it grew.<//>`;
  return html`<h2>Where most of it is</h2><ol class="way" aria-label="The way to the greatest growth">${found.map((each) => html`<li key=${each.path}>
    <a href=${place(each.path)}><bdi>${each.path.split("/").pop()}</bdi>/</a> <b>${signed(each.change)}</b></li>`)}</ol>
    <p><a href=${`#/disk/map?path=${encodeURIComponent(found.at(-1).path)}`}>Show what is there</a></p>`;
}
