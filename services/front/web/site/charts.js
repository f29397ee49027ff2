// Drawings: sparklines, charts and waterfalls as SVG and HTML, the graph on a canvas.
import { html, useEffect, useRef } from "./lib.js";
import { Layout } from "./layout.js";
import { ms, number } from "./ui.js";

// The path of a line through [x, y] points; it is interrupted where y is unknown.
function line(points, width, height, top) {
  let path = "";
  let drawing = false;
  for (const [x, y] of points) {
    if (y == null) { drawing = false; continue; }
    path += `${drawing ? "L" : "M"}${(x * width).toFixed(1)},${(height - 1 - (top ? (y / top) * (height - 2) : 0)).toFixed(1)}`;
    drawing = true;
  }
  return path;
}

const spread = (at, values) => {
  const first = at[0] ?? 0;
  const length = Math.max(1, (at.at(-1) ?? 1) - first);
  return values.map((value, index) => [(at[index] - first) / length, value]);
};

// `least` is the smallest top of the scale, so that noise does not fill it.
export function Sparkline({ at, values, label, format = number, least = 0 }) {
  const known = values.filter((value) => value != null);
  const most = Math.max(0, ...known);
  const top = Math.max(least, most);
  const text = known.length ? `${label}: now ${format(known.at(-1))}, at most ${format(most)}` : `${label}: not known yet`;
  return html`<svg class="spark" viewBox="0 0 112 26" preserveAspectRatio="none" role="img" aria-label=${text}>
    <title>${text}</title><path d=${line(spread(at, values), 112, 26, top)} /></svg>`;
}

export function Chart({ at, values, label, format = number }) {
  const known = values.filter((value) => value != null);
  const top = Math.max(0, ...known);
  const minutes = at.length ? Math.round((at.at(-1) - at[0]) / 60) : 0;
  const text = known.length ? `${label} over ${minutes} min: now ${format(known.at(-1))}, at most ${format(top)}` : `${label}: not known yet`;
  return html`<figure style=${{ margin: 0 }}><figcaption>${text}</figcaption>
    <svg class="chart" viewBox="0 0 600 140" preserveAspectRatio="none" role="img" aria-label=${text}>
      <path d=${line(spread(at, values), 600, 140, top)} /></svg></figure>`;
}

// The calls of a trace, each below the one that made it: the time in the queue, then in the process.
export function Waterfall({ calls }) {
  const began = Math.min(...calls.map((call) => call.at));
  const total = Math.max(...calls.map((call) => (call.at - began) * 1000 + call.duration_ms), 0.001);
  return html`<div class="waterfall" role="list" aria-label="Calls of this trace">${nested(calls).map(({ call, depth }) => {
    const start = ((call.at - began) * 1000) / total;
    const queued = Math.min(call.queued_ms ?? call.duration_ms, call.duration_ms) / total;
    const ran = call.duration_ms / total - queued;
    const at = (left, width) => ({ left: `${left * 100}%`, width: `${Math.max(width, 0) * 100}%` });
    return html`<div class="span" role="listitem" key=${call.span}>
      <span class="name" style=${{ paddingLeft: `${depth}rem` }}><code>${call.operation}</code>${" "}
        <span class="quiet">${call.process || call.service}${call.generation ? ` #${call.generation}` : ""}</span></span>
      <span class="track"><span class="queue" style=${at(start, queued)}></span>
        <span class=${call.outcome === "ok" ? "run" : "run failed"} style=${at(start + queued, ran)}></span>
      </span>
      <span class="time">${ms(call.duration_ms)}${call.queued_ms > 1 ? `, ${ms(call.queued_ms)} of it queued` : ""}${call.outcome === "ok" ? "" : `, ${call.outcome}`}</span></div>`;
  })}</div>`;
}

function nested(calls) {
  const known = new Set(calls.map((call) => call.span));
  const below = Map.groupBy ? Map.groupBy(calls, (call) => (known.has(call.parent) ? call.parent : "")) : new Map();
  const found = [];
  const add = (parent, depth) => (below.get(parent) || []).forEach((call) => { found.push({ call, depth }); add(call.span, depth + 1); });
  add("", 0);
  return found;
}

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Fits the canvas to its size on the screen, and returns its context in CSS pixels.
export function fitted(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width };
}

export function useResized(draw) {
  useEffect(() => {
    const again = () => draw();
    const themes = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("resize", again);
    themes.addEventListener("change", again);
    return () => { removeEventListener("resize", again); themes.removeEventListener("change", again); };
  });
}

// A graph of {id, label, group} and [from, to] pairs of indexes. The first node is the centre. Drag and wheel, or + − 0
// and the arrows, move and zoom; Tab through the list beside it, or click, to open a node.
export function Graph({ nodes, edges, label, onOpen, height = 460 }) {
  const canvas = useRef();
  const view = useRef({ x: 0, y: 0, zoom: 1 });
  const layout = useRef(null);
  const frame = useRef(0);

  const draw = (moving = false) => {
    if (!canvas.current || !layout.current) return;
    const { context, width } = fitted(canvas.current, height);
    const { x: left, y: top, zoom } = view.current;
    const { x, y, degree } = layout.current;
    const toX = (i) => width / 2 + (x[i] - left) * zoom;
    const toY = (i) => height / 2 + (y[i] - top) * zoom;
    context.strokeStyle = colour("--line");
    context.lineWidth = nodes.length > 2000 ? 0.5 : 1;
    context.beginPath();
    // While a large graph moves, a part of its edges is enough to see it.
    const stride = moving ? Math.ceil(edges.length / 4000) : 1;
    for (let i = 0; i < edges.length; i += stride) {
      const [one, other] = edges[i];
      context.moveTo(toX(one), toY(one));
      context.lineTo(toX(other), toY(other));
    }
    context.stroke();
    const groups = { true: colour("--accent"), false: colour("--quiet") };
    const few = nodes.length <= 2000;
    for (const known of [false, true]) {
      context.fillStyle = groups[known];
      context.beginPath();
      for (let i = 0; i < nodes.length; i++) {
        if ((nodes[i].known !== false) !== known) continue;
        const size = few ? Math.min(10, 3 + Math.sqrt(degree[i])) * Math.min(1.5, Math.max(0.7, zoom)) : Math.max(1, 1.5 * zoom);
        const [a, b] = [toX(i), toY(i)];
        if (a < -9 || b < -9 || a > width + 9 || b > height + 9) continue;
        if (few) { context.moveTo(a + size, b); context.arc(a, b, size, 0, 7); }
        else context.rect(a - size, b - size, 2 * size, 2 * size);
      }
      context.fill();
    }
    context.fillStyle = colour("--ink");
    context.font = "12px system-ui, sans-serif";
    const labelled = nodes.length <= 60 || zoom > 1.6 ? nodes.length : 1;
    let written = 0;
    for (let i = 0; i < labelled && written < 200; i++) {
      const [a, b] = [toX(i), toY(i)];
      if (a < 0 || b < 0 || a > width || b > height) continue;
      context.font = i ? "12px system-ui, sans-serif" : "bold 13px system-ui, sans-serif";
      context.fillText(nodes[i].label.slice(0, 40), a + 9, b + 4);
      written++;
    }
  };

  const fit = () => {
    if (!layout.current || !canvas.current) return;
    const { x, y } = layout.current;
    let reach = 60;
    for (let i = 0; i < nodes.length; i++) reach = Math.max(reach, Math.abs(x[i]), Math.abs(y[i]) * 1.4);
    view.current = { x: 0, y: 0, zoom: Math.min(2, Math.min(canvas.current.clientWidth, height * 1.4) / (2.2 * reach)) };
  };

  useEffect(() => {
    layout.current = new Layout(nodes.length, edges);
    let moved = false;
    const tick = () => {
      const began = performance.now();
      // As many steps as fit into half a frame, at least one.
      do layout.current.step(); while (performance.now() - began < 8 && layout.current.heat > 0.02);
      if (!moved) fit();
      draw(layout.current.heat > 0.02);
      if (layout.current.heat > 0.02) frame.current = requestAnimationFrame(tick);
    };
    frame.current = requestAnimationFrame(tick);
    const wheel = (event) => {
      event.preventDefault();
      moved = true;
      view.current.zoom *= Math.exp(-event.deltaY / 500);
      draw();
    };
    const element = canvas.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => { cancelAnimationFrame(frame.current); element.removeEventListener("wheel", wheel); };
  }, [nodes, edges]);
  useResized(draw);

  const drag = useRef(null);
  const nearest = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const { x: left, y: top, zoom } = view.current;
    const a = (event.clientX - box.left - box.width / 2) / zoom + left;
    const b = (event.clientY - box.top - height / 2) / zoom + top;
    let best = -1;
    let least = (14 / zoom) ** 2;
    for (let i = 0; i < nodes.length; i++) {
      const distance = (layout.current.x[i] - a) ** 2 + (layout.current.y[i] - b) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  };
  const keys = (event) => {
    const move = { ArrowLeft: [-40, 0], ArrowRight: [40, 0], ArrowUp: [0, -40], ArrowDown: [0, 40] }[event.key];
    if (move) { view.current.x += move[0] / view.current.zoom; view.current.y += move[1] / view.current.zoom; }
    else if (event.key === "+" || event.key === "=") view.current.zoom *= 1.25;
    else if (event.key === "-") view.current.zoom /= 1.25;
    else if (event.key === "0") fit();
    else return;
    event.preventDefault();
    draw();
  };
  return html`<canvas ref=${canvas} tabindex="0" role="img" onKeyDown=${keys}
    aria-label=${`${label}: ${nodes.length} nodes, ${edges.length} edges. Arrow keys move, + and − zoom, 0 shows all.`}
    onPointerDown=${(event) => { drag.current = { x: event.clientX, y: event.clientY, moved: 0 }; canvas.current.setPointerCapture(event.pointerId); }}
    onPointerMove=${(event) => {
      if (!drag.current) { const i = nearest(event); canvas.current.title = i < 0 ? "" : nodes[i].label; return; }
      const [dx, dy] = [event.clientX - drag.current.x, event.clientY - drag.current.y];
      drag.current = { x: event.clientX, y: event.clientY, moved: drag.current.moved + Math.abs(dx) + Math.abs(dy) };
      view.current.x -= dx / view.current.zoom;
      view.current.y -= dy / view.current.zoom;
      draw();
    }}
    onPointerUp=${(event) => { const { moved } = drag.current || { moved: 9 }; drag.current = null; const i = nearest(event); if (moved < 4 && i >= 0) onOpen(nodes[i]); }}></canvas>`;
}
