// The treemap of a folder on a canvas, with a legend of its colours.
import { html, useEffect, useId, useRef, useState } from "./lib.js";
import { colour, fitted, useResized } from "./charts.js";
import { bytes } from "./ui.js";

// Rectangles for items of a `size`, as square as possible (Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000).
export function squarified(items, x, y, width, height) {
  const total = items.reduce((sum, item) => sum + item.size, 0);
  const found = [];
  if (!total || width <= 0 || height <= 0) return found;
  const scale = (width * height) / total;
  let rest = items.filter((item) => item.size > 0).sort((one, other) => other.size - one.size);
  while (rest.length) {
    const side = Math.min(width, height);
    let count = 0;
    let area = 0;
    let best = Infinity;
    for (const item of rest) {
      const next = area + item.size * scale;
      const worst = Math.max((side * side * rest[0].size * scale) / (next * next), (next * next) / (side * side * item.size * scale));
      if (worst > best) break;
      [best, area, count] = [worst, next, count + 1];
    }
    const thickness = area / side;
    let offset = 0;
    for (const item of rest.slice(0, count)) {
      const length = (item.size * scale) / thickness;
      found.push(width >= height ? { item, x, y: y + offset, width: thickness, height: length } : { item, x: x + offset, y, width: length, height: thickness });
      offset += length;
    }
    if (width >= height) [x, width] = [x + thickness, width - thickness];
    else [y, height] = [y + thickness, height - thickness];
    rest = rest.slice(count);
  }
  return found;
}

const BY_ENDING = {
  image: "jpg jpeg png gif webp svg bmp tiff heic ico", video: "mp4 mkv webm mov avi", audio: "mp3 wav flac ogg m4a opus",
  text: "md txt rst pdf doc docx odt html csv json yaml yml toml xml log", code: "py pyi js mjs ts tsx c h cpp hpp rs go java rb sh css sql so pyc",
  archive: "zip tar gz xz zst bz2 7z whl deb rpm iso",
};
const OF_ENDING = new Map(Object.entries(BY_ENDING).flatMap(([kind, endings]) => endings.split(" ").map((ending) => [ending, kind])));
const KINDS = { folder: "folders", image: "pictures", video: "videos", audio: "sound", text: "texts", code: "code", archive: "archives", other: "other files" };

export const kindOf = ({ name, folder }) => (folder ? "folder" : OF_ENDING.get(name.split(".").pop().toLowerCase()) || "other");

const HEADER = 18;
const LEAST = 0.5;

// The rectangles of a treemap, with those of `children` inside their folders. `above` is the place of the folder in the list.
function laidOut(items, x, y, width, height, found = [], depth = 0, above = -1) {
  for (const each of squarified(items, x, y, width, height)) {
    if (each.width < LEAST || each.height < LEAST) continue;
    const at = found.push({ ...each, depth, above, filled: false }) - 1;
    if (each.item.children && each.width > 40 && each.height > 44) {
      laidOut(each.item.children, each.x + 3, each.y + HEADER, each.width - 6, each.height - HEADER - 3, found, depth + 1, at);
      found[at].filled = found.length > at + 1;
    }
  }
  return found;
}

// Where a key leads from a rectangle: along the entries of a folder, into it, or out of it.
function moved(boxes, at, key) {
  const now = boxes[at];
  if (!now) return boxes.length ? 0 : -1;
  const beside = boxes.map((_, index) => index).filter((index) => boxes[index].above === now.above);
  const place = beside.indexOf(at);
  if (key === "ArrowRight") return beside[Math.min(place + 1, beside.length - 1)];
  if (key === "ArrowLeft") return beside[Math.max(place - 1, 0)];
  if (key === "ArrowUp") return now.above >= 0 ? now.above : at;
  if (key === "Home") return beside[0];
  if (key === "End") return beside.at(-1);
  return now.filled ? at + 1 : at;
}

const KEYS = new Set(["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End"]);

// A treemap of {name, size, folder, children}. A table beside it has the same entries.
export function Treemap({ items, label, onOpen, height = 420 }) {
  const canvas = useRef();
  const drawn = useRef([]);
  const keys = useId();
  const [chosen, choose] = useState(-1);
  const [hovered, hover] = useState(-1);
  const [focused, focus] = useState(false);
  const [width, setWidth] = useState(0);
  const draw = () => {
    if (!canvas.current) return;
    const fit = fitted(canvas.current, height);
    drawn.current = laidOut(items, 0, 0, fit.width, height);
    setWidth(fit.width);
    const ink = colour("--ink");
    const fills = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, colour(`--kind-${kind}`)]));
    const { context } = fit;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "top";
    drawn.current.forEach((box) => paint(context, box, fills, ink));
    const now = focused && drawn.current[chosen];
    if (now) {
      context.strokeStyle = colour("--accent");
      context.lineWidth = 3;
      context.strokeRect(now.x + 1.5, now.y + 1.5, Math.max(now.width - 3, 2), Math.max(now.height - 3, 2));
    }
  };
  useEffect(draw);
  useResized(draw);
  useEffect(() => { choose(-1); hover(-1); }, [items]);
  const found = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    // Those inside come after their folder.
    return drawn.current.findLastIndex((each) => x >= each.x && x < each.x + each.width && y >= each.y && y < each.y + each.height);
  };
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (KEYS.has(event.key)) { hover(-1); choose(moved(drawn.current, chosen, event.key)); }
    else if (event.key === "Enter" && drawn.current[chosen]) onOpen(drawn.current[chosen].item);
    else if (event.key === "Escape") { hover(-1); choose(-1); }
    else return;
    event.preventDefault();
  };
  const shown = hovered >= 0 ? drawn.current[hovered] : focused ? drawn.current[chosen] : null;
  const spoken = focused && drawn.current[chosen] ? said(drawn.current[chosen].item) : "";
  return html`<div class="treemap"><canvas ref=${canvas} tabindex="0" role="application" aria-roledescription="treemap"
      aria-label=${`${label}: ${items.length} entries`} aria-describedby=${keys} onKeyDown=${pressed}
      onFocus=${() => { focus(true); if (chosen < 0 && drawn.current.length) choose(0); }} onBlur=${() => focus(false)}
      onPointerMove=${(event) => hover(found(event))} onPointerLeave=${() => hover(-1)}
      onClick=${(event) => { const each = drawn.current[found(event)]; if (each) onOpen(each.item); }}></canvas>
    ${shown && html`<${Tip} box=${shown} width=${width} />`}
    <p class="skip" role="status">${spoken}</p>
    <p class="skip" id=${keys}>Left and right go along the entries, down into a folder, up out of it; Enter opens.</p></div>
    <${Legend} items=${items} />`;
}

const said = (item) => `${item.name}${item.folder ? "/" : ""}, ${bytes(item.size)}, ${KINDS[kindOf(item)].replace(/s$/, "")}`;

function paint(context, { item, x, y, width: w, height: h, filled }, fills, ink) {
  context.fillStyle = fills[kindOf(item)];
  context.fillRect(x + 0.5, y + 0.5, Math.max(w - 1, 0.5), Math.max(h - 1, 0.5));
  if (filled) {
    context.strokeStyle = ink;
    context.globalAlpha = 0.25;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    context.globalAlpha = 1;
  }
  if (w < 46 || h < 18) return;
  context.save();
  context.beginPath();
  context.rect(x + 2, y + 2, w - 4, h - 4);
  context.clip();
  context.fillStyle = ink;
  context.fillText(item.name + (item.folder ? "/" : ""), x + 5, y + 4);
  if (h > 34 && !filled) context.fillText(bytes(item.size), x + 5, y + 19);
  context.restore();
}

// The name and the size of a rectangle, which may be too small for them.
function Tip({ box, width }) {
  const right = box.x + box.width / 2 > width / 2;
  const style = { top: `${Math.max(0, box.y) + 22}px`, ...(right ? { right: `${Math.max(0, width - box.x - box.width)}px` } : { left: `${box.x}px` }) };
  return html`<div class="tip" style=${style}><bdi>${box.item.name}${box.item.folder ? "/" : ""}</bdi>: ${bytes(box.item.size)}</div>`;
}

function Legend({ items }) {
  const there = new Set(items.flatMap((each) => [each, ...(each.children || [])]).map(kindOf));
  return html`<ul class="legend" aria-label="Colours">${Object.entries(KINDS).filter(([kind]) => there.has(kind)).map(([kind, name]) => html`
    <li key=${kind}><span class=${`swatch ${kind}`}></span>${name}</li>`)}</ul>`;
}
