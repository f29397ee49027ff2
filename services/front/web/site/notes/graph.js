// The graph of all notes, with filters, and the same notes as a list.
import { html, useId, useMemo, useState } from "../lib.js";
import { call } from "../api.js";
import { Loaded, Nothing, go, plural, useWork } from "../ui.js";
import { noteAt, wanted } from "./address.js";
import { Network } from "./network.js";

const STEP = 50;

export function Whole(parameters) {
  const work = useWork(() => call("notes_map"), []);
  return html`<${Loaded} work=${work}>${(map) => html`<${Chosen} map=${map} ...${parameters} />`}<//>`;
}

function Chosen({ map, find = "", folder = "", mark = "", alone = "", around = "", depth = "2" }) {
  const steps = Math.min(3, Math.max(1, Number(depth) || 2));
  const { nodes, edges, centre } = useMemo(() => part(map, { find, folder, alone, around, steps }), [map, find, folder, alone, around, steps]);
  const marked = useMemo(() => (mark ? new Set(nodes.filter((each) => matches(map, each.place, wanted(mark))).map((each) => each.id)) : null), [nodes, mark]);
  const set = (more) => go("/notes/graph", { find, folder, mark, alone, around, depth: around ? String(steps) : "", ...more });
  return html`<${Filters} map=${map} values=${{ find, folder, mark, alone }} set=${set} />
    ${around && html`<div class="row" role="group" aria-label="Steps from the note"><span>Around <a href=${noteAt(around)}>${map.titles[map.ids.indexOf(around)] || around}</a></span>
      ${[1, 2, 3].map((each) => html`<label key=${each}><input type="radio" name="steps" checked=${each === steps} onChange=${() => set({ depth: String(each) })} /> ${plural(each, "step")}</label>`)}
      <button onClick=${() => set({ around: "", depth: "" })}>All notes</button></div>`}
    <p class="quiet" role="status">${plural(nodes.length, "note")}, ${plural(edges.length / 2, "link")}${marked ? `; ${plural(marked.size, "note")} highlighted` : ""}${map.more ? `; ${plural(map.more, "note")} left out` : ""}.</p>
    <${Network} nodes=${nodes} edges=${edges} marked=${marked} centre=${centre} label="Graph of the notes" height=${560} onOpen=${(node) => { location.hash = noteAt(node.id); }} />
    <${List} nodes=${nodes} marked=${marked} around=${(id) => set({ around: id, depth: "2" })} />`;
}

function Filters({ map, values, set }) {
  const [text, write] = useState(values);
  const folders = useId();
  const field = (name, label, more = {}) => html`<label>${label} <input type="search" value=${text[name]} ...${more}
    onInput=${(event) => write({ ...text, [name]: event.target.value })} onChange=${(event) => set({ ...text, [name]: event.target.value })} /></label>`;
  return html`<form class="row" role="search" aria-label="Filters" onSubmit=${(event) => { event.preventDefault(); set(text); }}>
    ${field("find", "Only words or #tag")}${field("folder", "In folder", { list: folders })}${field("mark", "Highlight")}
    <datalist id=${folders}>${map.folders.slice(0, 500).map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>
    <label><input type="checkbox" checked=${Boolean(values.alone)} onChange=${(event) => set({ ...text, alone: event.target.checked ? "hide" : "" })} /> Hide notes without links</label>
    <button>Apply</button></form>`;
}

// Whether the note at a place has all words in its title, id or folder, and all tags, or tags below them.
function matches(map, place, { words, tags }) {
  const name = `${map.titles[place]}\n${map.ids[place]}\n${map.folders[map.folder[place]]}`.toLowerCase();
  return words.every((each) => name.includes(each)) && tags.every((tag) => map.tagged[place].some((own) => map.tags[own] === tag || map.tags[own].startsWith(`${tag}/`)));
}

function part(map, { find, folder, alone, around, steps }) {
  const filter = wanted(find);
  const kept = map.ids.map((_, place) => (!folder || map.folders[map.folder[place]].startsWith(folder)) && matches(map, place, filter));
  const start = around ? map.ids.indexOf(around) : -1;
  if (start >= 0) near(map, start, steps, kept);
  else if (alone) {
    const linked = new Set();
    for (let i = 0; i < map.edges.length; i += 2) if (kept[map.edges[i]] && kept[map.edges[i + 1]]) linked.add(map.edges[i]).add(map.edges[i + 1]);
    kept.forEach((_, place) => { kept[place] &&= linked.has(place); });
  }
  const groups = new Map();
  const at = new Int32Array(map.ids.length).fill(-1);
  const nodes = [];
  map.ids.forEach((id, place) => {
    if (!kept[place]) return;
    const top = map.folders[map.folder[place]].split("/")[0];
    if (!groups.has(top)) groups.set(top, groups.size);
    at[place] = nodes.length;
    nodes.push({ id, place, label: map.titles[place], group: groups.get(top), links: 0 });
  });
  const edges = [];
  for (let i = 0; i < map.edges.length; i += 2) {
    const [one, other] = [at[map.edges[i]], at[map.edges[i + 1]]];
    if (one < 0 || other < 0) continue;
    edges.push(one, other);
    nodes[one].links++;
    nodes[other].links++;
  }
  return { nodes, edges, centre: start >= 0 ? at[start] : -1 };
}

// Leaves only the notes within some steps of one.
function near(map, start, steps, kept) {
  let reached = new Set([start]);
  for (let step = 0; step < steps; step++) {
    const next = new Set(reached);
    for (let i = 0; i < map.edges.length; i += 2) {
      const [one, other] = [map.edges[i], map.edges[i + 1]];
      if (reached.has(one) && kept[other]) next.add(other);
      if (reached.has(other) && kept[one]) next.add(one);
    }
    reached = next;
  }
  kept.forEach((_, place) => { kept[place] = reached.has(place); });
}

function List({ nodes, marked, around }) {
  const [count, set] = useState(STEP);
  const sorted = useMemo(() => (marked ? nodes.filter((each) => marked.has(each.id)) : [...nodes]).sort((one, other) => other.links - one.links), [nodes, marked]);
  if (!sorted.length) return html`<${Nothing}>No note matches.<//>`;
  return html`<h2>${marked ? "The highlighted notes" : "The notes"} as a list, those with the most links first</h2>
    <ul class="plain listed" aria-label="Notes of the graph">${sorted.slice(0, count).map((each) => html`<li key=${each.id}><a href=${noteAt(each.id)}>${each.label}</a>
      <span><span class="quiet">${plural(each.links, "link")}</span> <button class="link" aria-label=${`Around ${each.label}`} onClick=${() => around(each.id)}>around it</button></span></li>`)}</ul>
    ${sorted.length > count && html`<button onClick=${() => set(count + STEP)}>${Math.min(STEP, sorted.length - count)} more of ${sorted.length.toLocaleString("en")}</button>`}`;
}
