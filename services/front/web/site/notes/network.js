// A graph of {id, label, group} and the ends of its edges, one pair after another. Drag and wheel, or + − 0 and the
// arrows, move and zoom; a click opens a node. A list beside it serves the keyboard.
import { html, useEffect, useRef } from "../lib.js";
import { Painter } from "./painter.js";

export function Network({ nodes, edges, label, onOpen, height = 460, marked = null, centre = -1 }) {
  const canvas = useRef();
  const painter = useRef();
  const drag = useRef(null);
  useEffect(() => {
    painter.current = new Painter(canvas.current, height);
    return () => painter.current.end();
  }, []);
  useEffect(() => painter.current.show(nodes, edges, centre), [nodes, edges, centre]);
  useEffect(() => painter.current.mark(marked), [marked]);
  const keys = (event) => {
    const move = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
    if (move) painter.current.move(...move);
    else if (event.key === "+" || event.key === "=") painter.current.zoom(1.25);
    else if (event.key === "-") painter.current.zoom(0.8);
    else if (event.key === "0") painter.current.reset();
    else return;
    event.preventDefault();
  };
  const down = (event) => {
    drag.current = { x: event.clientX, y: event.clientY, far: 0 };
    canvas.current.setPointerCapture(event.pointerId);
  };
  const over = (event) => {
    const from = drag.current;
    if (!from) return painter.current.hover(painter.current.nearest(event));
    const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
    drag.current = { x: event.clientX, y: event.clientY, far: from.far + Math.abs(dx) + Math.abs(dy) };
    painter.current.drag(true);
    painter.current.move(dx, dy);
  };
  const up = (event) => {
    const far = drag.current?.far ?? 9;
    drag.current = null;
    painter.current.drag(false);
    const index = painter.current.nearest(event);
    if (far < 4 && index >= 0) onOpen(nodes[index]);
  };
  return html`<canvas ref=${canvas} tabindex="0" role="img" onKeyDown=${keys}
    aria-label=${`${label}: ${nodes.length} notes, ${edges.length / 2} links. Arrow keys move, + and − zoom, 0 shows all.`}
    onPointerDown=${down} onPointerMove=${over} onPointerUp=${up} onPointerCancel=${() => { drag.current = null; painter.current.drag(false); }}
    onPointerLeave=${() => painter.current.hover(-1)}></canvas>`;
}
