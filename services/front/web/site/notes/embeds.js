// Notes and pictures that a note embeds: `![[note]]`, `![[note#heading]]`, `![[picture.png]]`.
import { call } from "../api.js";
import { noteAt } from "./address.js";
import { key, linksOf, missing } from "./markdown.js";

const DEPTH = 3;
const AT_MOST = 40;
const PICTURE = /\.(?:png|jpe?g|gif|webp|avif|bmp|svg)$/i;

export function fillEmbeds(kept, around, how) {
  [...kept.querySelectorAll("[data-embed]")].forEach((box, index) => {
    const written = box.dataset.embed;
    const found = around.links.get(key(written));
    const name = key(written).split("#")[0];
    const alt = /^\d*(?:x\d+)?$/.test(box.dataset.alt) ? "" : box.dataset.alt;
    if (found?.id) embed(box, found, key(written).split("#").slice(1).pop() || "", around, how, index);
    else if (PICTURE.test(name)) pictureOf(box, found?.file, name, alt, how, index);
    else if (found?.file) box.replaceChildren(`File: ${name}`);
    else missing(box, `${name} is missing`);
  });
}

async function pictureOf(box, path, name, alt, how, index) {
  try {
    const found = path || (index < AT_MOST && (await below(name)));
    if (found) await how.show(box, found, alt || name);
    else missing(box, `Picture ${name} is missing`);
  } catch (error) {
    missing(box, `Picture ${name}: ${error.message}`);
  }
}

// A picture that is neither beside the note nor at its path, from the index of files.
async function below(name) {
  const file = name.split("/").pop();
  const { entries } = await call("files_find", { name_contains: file, limit: 20 });
  return entries.map((each) => each.path).find((path) => path.endsWith(`/${name}`));
}

async function embed(box, found, heading, around, how, index) {
  const link = Object.assign(document.createElement("a"), { href: noteAt(found.id, { heading }), textContent: found.title || found.id });
  box.replaceChildren(link);
  if (around.chain.length >= DEPTH || around.chain.includes(found.id) || found.id === around.id || index >= AT_MOST) return;
  try {
    const note = await call("notes_show", { id: found.id, backlinks: 0 });
    if (how.ended.now) return;
    const frame = Object.assign(document.createElement("div"), { className: "embedded" });
    const inner = document.createElement("div");
    frame.append(link, inner);
    // A block within a paragraph would be invalid.
    (box.closest("p") || box).after(frame);
    box.remove();
    how.fill(inner, section(note, heading), { id: note.id, links: linksOf(note.links), chain: [...around.chain, around.id] });
  } catch (error) {
    box.append(` (${error.message})`);
  }
}

export const bodyOf = ({ text, start }) => text.split(/\r\n?|\n/).slice(start || 0).join("\n");

// The text under a heading, or all of it.
function section(note, heading) {
  const at = (note.headings || []).findIndex((each) => each.title.toLowerCase() === heading.trim().toLowerCase());
  if (!heading || at < 0) return bodyOf(note);
  const { level, line } = note.headings[at];
  const next = note.headings.slice(at + 1).find((each) => each.level <= level);
  return note.text.split(/\r\n?|\n/).slice(line - 1, next ? next.line - 1 : undefined).join("\n");
}
