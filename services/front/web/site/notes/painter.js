// Draws a large graph on a canvas. A worker lays it out; frames are drawn only while something moves.
import { Pixels } from "./pixels.js";

const LABELS = 200;
const MANY = 1500;
const FRAME_MS = 1000 / 60;

export class Painter {
  constructor(canvas, height, onOpen) {
    Object.assign(this, { canvas, height, onOpen, nodes: [], edges: [], marked: null, centre: -1, hovered: -1, frame: 0, budget: 6000, last: 0 });
    this.view = { x: 0, y: 0, zoom: 1 };
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.themes = matchMedia("(prefers-color-scheme: dark)");
    this.again = () => { this.colours = null; this.wake(); };
    this.resized = new ResizeObserver(this.again);
    this.resized.observe(canvas);
    this.themes.addEventListener("change", this.again);
    this.wheel = (event) => { event.preventDefault(); this.zoom(Math.exp(-event.deltaY / 500), event); };
    canvas.addEventListener("wheel", this.wheel, { passive: false });
  }

  end() {
    this.worker?.terminate();
    cancelAnimationFrame(this.frame);
    this.resized.disconnect();
    this.themes.removeEventListener("change", this.again);
    this.canvas.removeEventListener("wheel", this.wheel);
  }

  show(nodes, edges, centre = -1) {
    this.worker?.terminate();
    Object.assign(this, { nodes, edges, centre, hovered: -1, x: null, y: null, isSettled: nodes.length === 0, hasMoved: false });
    this.degree = new Uint32Array(nodes.length);
    for (const end of edges) this.degree[end]++;
    if (!nodes.length) return this.wake();
    this.worker = new Worker(new URL("./layout-worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.placed(data);
    this.worker.postMessage({ count: nodes.length, edges: Uint32Array.from(edges) });
    this.canvas.dataset.state = "moving";
  }

  placed({ x, y, done }) {
    [this.toX, this.toY, this.isSettled] = [x, y, done];
    if (!this.x || this.isStill) [this.x, this.y] = [x.slice(), y.slice()];
    if (done) this.worker.terminate();
    // Those who want no motion see the layout from time to time.
    if (this.isStill && !done && performance.now() - this.last < 500) return;
    this.wake();
  }

  mark(marked) {
    this.marked = marked;
    this.wake();
  }

  wake() {
    this.frame ||= requestAnimationFrame((now) => this.tick(now));
  }

  tick(now) {
    this.frame = 0;
    const took = now - this.last;
    this.last = now;
    const moving = this.follow();
    // As many edges as fit into a frame, while it moves; all of them at rest.
    if (this.wasMoving && took < 500) this.budget = Math.min(100_000, Math.max(1000, this.budget * (took > FRAME_MS * 1.15 ? 0.8 : 1.05)));
    if (!this.hasMoved) this.fit();
    this.draw(moving || this.isDragged);
    this.wasMoving = moving;
    if (moving) this.wake();
    else if (this.isSettled) this.canvas.dataset.state = "still";
  }

  // Moves the nodes towards their places; returns whether they are on their way.
  follow() {
    if (!this.x || this.isStill) return false;
    const { x, y, toX, toY } = this;
    let most = 0;
    for (let i = 0; i < x.length; i++) {
      const [dx, dy] = [toX[i] - x[i], toY[i] - y[i]];
      x[i] += dx * 0.3;
      y[i] += dy * 0.3;
      most = Math.max(most, Math.abs(dx), Math.abs(dy));
    }
    return !this.isSettled || most * this.view.zoom > 0.3;
  }

  fit() {
    if (!this.x) return;
    let [left, right, top, bottom] = [-60, 60, -60, 60];
    for (let i = 0; i < this.x.length; i++) {
      left = Math.min(left, this.x[i]); right = Math.max(right, this.x[i]);
      top = Math.min(top, this.y[i]); bottom = Math.max(bottom, this.y[i]);
    }
    const zoom = Math.min(2, 0.94 * Math.min(this.canvas.clientWidth / (right - left), this.height / (bottom - top)));
    this.view = { x: (left + right) / 2, y: (top + bottom) / 2, zoom };
  }

  zoom(factor, event) {
    this.hasMoved = true;
    const before = event && this.under(event);
    this.view.zoom = Math.min(20, Math.max(0.005, this.view.zoom * factor));
    if (before) {
      const after = this.under(event);
      this.view.x += before.x - after.x;
      this.view.y += before.y - after.y;
    }
    this.wake();
  }

  move(dx, dy) {
    this.hasMoved = true;
    this.view.x -= dx / this.view.zoom;
    this.view.y -= dy / this.view.zoom;
    this.wake();
  }

  drag(is) {
    this.isDragged = is;
    this.wake();
  }

  reset() {
    this.hasMoved = false;
    this.wake();
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left - box.width / 2) / this.view.zoom + this.view.x, y: (event.clientY - box.top - this.height / 2) / this.view.zoom + this.view.y };
  }

  nearest(event) {
    if (!this.x) return -1;
    const at = this.under(event);
    let [best, least] = [-1, (14 / this.view.zoom) ** 2];
    for (let i = 0; i < this.nodes.length; i++) {
      const distance = (this.x[i] - at.x) ** 2 + (this.y[i] - at.y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  hover(index) {
    if (index === this.hovered) return;
    this.hovered = index;
    this.canvas.title = index < 0 ? "" : this.nodes[index].label;
    this.wake();
  }

  palette() {
    if (this.colours) return this.colours;
    const style = getComputedStyle(document.documentElement);
    const [saturation, light] = this.themes.matches ? [60, 68] : [55, 40];
    const group = Array.from({ length: 12 }, (_, index) => `hsl(${(210 + index * 67) % 360} ${saturation}% ${light}%)`);
    const named = (name) => style.getPropertyValue(name).trim();
    return (this.colours = { group, line: named("--line"), quiet: named("--quiet"), accent: named("--accent"), ink: named("--ink") });
  }

  draw(moving) {
    const { canvas, height, nodes, x, y } = this;
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d", { alpha: true });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!x) return;
    const { x: left, y: top, zoom } = this.view;
    if (this.at?.x.length !== nodes.length) this.at = { x: new Float32Array(nodes.length), y: new Float32Array(nodes.length) };
    const { at } = this;
    for (let i = 0; i < nodes.length; i++) {
      at.x[i] = width / 2 + (x[i] - left) * zoom;
      at.y[i] = height / 2 + (y[i] - top) * zoom;
    }
    if (moving && nodes.length > MANY) {
      this.drawPixels(context, at, ratio);
    } else {
      this.drawEdges(context, at);
      this.drawNodes(context, at, width);
    }
    this.drawLabels(context, at, width);
  }

  // While many nodes move, plain pixels are several times faster than the canvas's own lines.
  drawPixels(context, at, ratio) {
    const { edges, nodes, degree, marked } = this;
    this.pixels ||= new Pixels();
    this.pixels.begin(context, this.canvas.width, this.canvas.height);
    const colours = this.palette();
    const stride = 2 * Math.max(1, Math.ceil(edges.length / 2 / this.budget));
    const line = this.pixels.colour(colours.line);
    for (let i = 0; i < edges.length; i += stride) {
      const [one, other] = [edges[i], edges[i + 1]];
      this.pixels.line(at.x[one] * ratio, at.y[one] * ratio, at.x[other] * ratio, at.y[other] * ratio, line);
    }
    const groups = colours.group.map((each) => this.pixels.colour(each));
    const [accent, quiet] = [this.pixels.colour(colours.accent), this.pixels.colour(colours.quiet)];
    const scale = Math.min(1.5, Math.max(0.35, this.view.zoom)) * ratio;
    for (let i = 0; i < nodes.length; i++) {
      const is = i === this.centre || (marked && marked.has(nodes[i].id));
      const size = Math.min(10, 2.5 + Math.sqrt(degree[i])) * scale + (is ? 2 : 0);
      this.pixels.square(at.x[i] * ratio, at.y[i] * ratio, size, is ? accent : marked ? quiet : groups[(nodes[i].group || 0) % groups.length]);
    }
    this.pixels.end(context);
  }

  drawEdges(context, at) {
    const { edges } = this;
    context.strokeStyle = this.palette().line;
    context.lineWidth = this.nodes.length > 2000 ? 0.5 : 1;
    context.beginPath();
    for (let i = 0; i < edges.length; i += 2) {
      context.moveTo(at.x[edges[i]], at.y[edges[i]]);
      context.lineTo(at.x[edges[i + 1]], at.y[edges[i + 1]]);
    }
    context.stroke();
    if (this.hovered < 0) return;
    context.strokeStyle = this.palette().accent;
    context.lineWidth = 1.5;
    context.beginPath();
    for (let i = 0; i < edges.length; i += 2) {
      if (edges[i] !== this.hovered && edges[i + 1] !== this.hovered) continue;
      context.moveTo(at.x[edges[i]], at.y[edges[i]]);
      context.lineTo(at.x[edges[i + 1]], at.y[edges[i + 1]]);
    }
    context.stroke();
  }

  drawNodes(context, at, width) {
    const { nodes, degree, marked, height, view: { zoom } } = this;
    const colours = this.palette();
    const few = nodes.length <= MANY;
    const scale = few ? Math.min(1.5, Math.max(0.7, zoom)) : Math.min(1.5, Math.max(0.35, zoom));
    // One colour after the other, because a change of colour costs.
    const byColour = new Map();
    for (let i = 0; i < nodes.length; i++) {
      if (at.x[i] < -12 || at.y[i] < -12 || at.x[i] > width + 12 || at.y[i] > height + 12) continue;
      const is = i === this.centre || i === this.hovered || (marked && marked.has(nodes[i].id));
      const colour = is ? colours.accent : marked || nodes[i].known === false ? colours.quiet : colours.group[(nodes[i].group || 0) % colours.group.length];
      if (!byColour.has(colour)) byColour.set(colour, []);
      byColour.get(colour).push(i);
    }
    // Those that are marked lie above the others.
    for (const [colour, some] of [...byColour].sort(([one], [other]) => (one === colours.accent) - (other === colours.accent))) {
      context.fillStyle = colour;
      context.globalAlpha = marked && colour !== colours.accent ? 0.35 : 1;
      for (const i of some) {
        const size = Math.min(10, 2.5 + Math.sqrt(degree[i])) * scale + (colour === colours.accent ? 2 : 0);
        if (few || zoom > 0.8) { context.beginPath(); context.arc(at.x[i], at.y[i], size, 0, 7); context.fill(); }
        else context.fillRect(at.x[i] - size, at.y[i] - size, 2 * size, 2 * size);
      }
    }
    context.globalAlpha = 1;
  }

  drawLabels(context, at, width) {
    const { nodes, marked, height, view: { zoom } } = this;
    const all = nodes.length <= 60 || zoom > 1.6;
    if (!all && !marked && this.hovered < 0 && this.centre < 0) return;
    context.fillStyle = this.palette().ink;
    context.font = "12px system-ui, sans-serif";
    let written = 0;
    for (let i = 0; i < nodes.length && written < LABELS; i++) {
      if (!all && i !== this.centre && i !== this.hovered && !(marked && marked.size <= LABELS && marked.has(nodes[i].id))) continue;
      if (at.x[i] < 0 || at.y[i] < 0 || at.x[i] > width || at.y[i] > height) continue;
      context.fillText(nodes[i].label.slice(0, 40), at.x[i] + 9, at.y[i] + 4);
      written++;
    }
  }
}
