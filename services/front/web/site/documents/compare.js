// Two versions of a file beside each other, or below each other where there is no room.
import { html, useEffect, useMemo, useState } from "../lib.js";
import { call } from "../api.js";
import { Parts, useColoured } from "../code.js";
import { Loaded, Nothing, Select, Title, bytes, number, plural, useWork } from "../ui.js";

const MOST_BYTES = 1_000_000;
const AROUND = 3;
const NARROW = "(max-width: 50rem)";

export const placeOf = (path, before, after) => `#/documents/compare?${new URLSearchParams({ path, ...(before && { before }), ...(after && { after }) })}`;
export const versionName = ({ modified, size, hash }) => `${new Date(modified).toLocaleString()}, ${bytes(size)}, ${hash.slice(0, 8)}`;

export function Compare({ path = "", before = "", after = "" }) {
  const name = path.split("/").pop();
  const work = useWork(() => call("documents_versions", { path }), [path]);
  return html`<p><a href="#/documents">Documents</a></p><${Title}>Versions of <bdi>${name}</bdi><//>
    <p class="quiet">${path}</p>
    <${Loaded} work=${work}>${({ versions }) => (versions.length ? html`<${Chosen} path=${path} versions=${versions}
      after=${after || versions[0].hash} before=${before || (versions[1] || versions[0]).hash} />` : html`<${Nothing}>No snapshot holds this file.<//>`)}<//>`;
}

function Chosen({ path, versions, before, after }) {
  const options = versions.map((each) => [each.hash, versionName(each)]);
  const work = useWork(async () => {
    if (before === after) return null;
    const [one, other] = await Promise.all([before, after].map((hash) => call("documents_version", { hash, length: MOST_BYTES })));
    const { diffArrays } = await import("../lib/diff.mjs");
    if ([one, other].some((each) => each.encoding === "base64")) return { why: "At least one of them is not text." };
    if ([one, other].some((each) => each.next_offset != null)) return { why: `They are too long to be compared here: more than ${bytes(MOST_BYTES)}.` };
    const parts = diffArrays(one.content.split("\n"), other.content.split("\n"), { timeout: 2000 });
    return parts ? { parts, one: one.content, other: other.content } : { why: "They differ in too many lines to be compared here." };
  }, [before, after]);
  const open = (hash, text) => html`<a href=${`#/documents/version/${hash}?path=${encodeURIComponent(path)}`}>${text}</a>`;
  return html`<div class="row"><${Select} label="Before" value=${before} options=${options} onChange=${(value) => { location.hash = placeOf(path, value, after); }} />
      <${Select} label="After" value=${after} options=${options} onChange=${(value) => { location.hash = placeOf(path, before, value); }} />
      <button onClick=${() => { location.hash = placeOf(path, after, before); }}>Swap</button> ${open(before, "Open the first")} ${open(after, "Open the second")}</div>
    <${Loaded} work=${work}>${(found) => (found === null ? html`<${Nothing}>${versions.length > 1 ? "This is the same version twice." : "There is only one version."}<//>`
      : found.why ? html`<${Nothing}>${found.why}<//>` : html`<${Difference} name=${path} ...${found} />`)}<//>`;
}

// Rows of {left, right}: indexes of lines from 0, null where the other side has an added line.
function rowsOf(parts) {
  const rows = [];
  let left = 0;
  let right = 0;
  for (let at = 0; at < parts.length; at++) {
    const { added, removed, value } = parts[at];
    if (!added && !removed) {
      for (const _ of value) rows.push({ left: left++, right: right++, equal: true });
      continue;
    }
    // What was removed is beside what replaces it.
    const next = parts[at + 1];
    const pair = next && (next.added || next.removed) && next.added !== added ? next.value : [];
    if (pair.length) at++;
    const [gone, come] = removed ? [value, pair] : [pair, value];
    for (let row = 0; row < Math.max(gone.length, come.length); row++)
      rows.push({ left: row < gone.length ? left++ : null, right: row < come.length ? right++ : null, equal: false });
  }
  return rows;
}

// Runs of rows; those that are equal and far from a change are folded.
function runsOf(rows) {
  const near = new Uint8Array(rows.length);
  rows.forEach((row, index) => { if (!row.equal) near.fill(1, Math.max(0, index - AROUND), index + AROUND + 1); });
  const runs = [];
  rows.forEach((row, index) => {
    const last = runs.at(-1);
    if (last && last.folded === !near[index]) last.rows.push(row);
    else runs.push({ folded: !near[index], rows: [row] });
  });
  return runs.map((run) => (run.rows.length < 3 ? { ...run, folded: false } : run));
}

function useNarrow() {
  const [narrow, set] = useState(matchMedia(NARROW).matches);
  useEffect(() => {
    const media = matchMedia(NARROW);
    const changed = () => set(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  return narrow;
}

function Difference({ parts, one, other, name }) {
  const rows = useMemo(() => rowsOf(parts), [parts]);
  const runs = useMemo(() => runsOf(rows), [rows]);
  const lines = [useColoured(one, name), useColoured(other, name)];
  const narrow = useNarrow();
  const [gone, come] = ["left", "right"].map((side) => rows.filter((each) => !each.equal && each[side] !== null).length);
  const Row = narrow ? Unified : Beside;
  return html`<p role="status">${gone || come ? `${plural(come, "line")} added, ${number(gone)} removed.` : "Their texts are equal."}</p>
    ${(gone > 0 || come > 0) && html`<div class="wide" tabindex="0" role="region" aria-label="Differences"><table class="diff code">
      <caption class="skip">Differences of the two versions</caption>
      <colgroup>${(narrow ? ["number", "number", ""] : ["number", "", "number", ""]).map((kind, index) => html`<col key=${index} class=${kind} />`)}</colgroup>
      <thead>${narrow ? html`<tr><th scope="col"><abbr title="Before">−</abbr></th><th scope="col"><abbr title="After">+</abbr></th><th scope="col">Text</th></tr>`
        : html`<tr><th scope="col" colspan="2">Before</th><th scope="col" colspan="2">After</th></tr>`}</thead>
      ${runs.map((run, index) => html`<${Run} key=${index} run=${run} lines=${lines} Row=${Row} columns=${narrow ? 3 : 4} />`)}</table></div>`}`;
}

function Run({ run, lines, Row, columns }) {
  const [open, set] = useState(!run.folded);
  if (!open) return html`<tbody><tr class="folded"><td colspan=${columns}><button class="link" onClick=${() => set(true)}>${plural(run.rows.length, "equal line")}</button></td></tr></tbody>`;
  return html`<tbody>${run.rows.map((row, index) => html`<${Row} key=${index} row=${row} lines=${lines} />`)}</tbody>`;
}

const kindOf = (row, side) => (row.equal ? "" : row[side] === null ? "none" : side === "left" ? "gone" : "come");
const SIGNS = { gone: "−", come: "+", "": " ", none: "" };

const Text = ({ kind, line }) => html`<td class=${`text ${kind}`}><span class="sign">${SIGNS[kind]}</span>${line && html`<${Parts} line=${line} />`}</td>`;
const Number_ = ({ at, kind }) => html`<td class=${`number ${kind}`}>${at === null ? "" : at + 1}</td>`;

function Beside({ row, lines }) {
  return html`<tr>${["left", "right"].map((side, index) => html`<${Number_} key=${`${side}n`} at=${row[side]} kind=${kindOf(row, side)} />
    <${Text} key=${side} kind=${kindOf(row, side)} line=${row[side] === null ? null : lines[index][row[side]]} />`)}</tr>`;
}

function Unified({ row, lines }) {
  if (row.equal) return html`<tr><${Number_} at=${row.left} kind="" /><${Number_} at=${row.right} kind="" /><${Text} kind="" line=${lines[0][row.left]} /></tr>`;
  return html`${row.left !== null && html`<tr><${Number_} at=${row.left} kind="gone" /><${Number_} at=${null} kind="gone" /><${Text} kind="gone" line=${lines[0][row.left]} /></tr>`}
    ${row.right !== null && html`<tr><${Number_} at=${null} kind="come" /><${Number_} at=${row.right} kind="come" /><${Text} kind="come" line=${lines[1][row.right]} /></tr>`}`;
}
