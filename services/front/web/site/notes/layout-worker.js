// Lays a graph out beside the page, and sends the places of its nodes until they rest.
import { Layout } from "../layout.js";

const INTERVAL_MS = 40;
const COLD = 0.02;

onmessage = ({ data: { count, edges } }) => {
  const pairs = [];
  for (let i = 0; i < edges.length; i += 2) pairs.push([edges[i], edges[i + 1]]);
  const layout = new Layout(count, pairs);
  let sent = -Infinity;
  const run = () => {
    const began = performance.now();
    do layout.step(); while (layout.heat > COLD && performance.now() - began < INTERVAL_MS / 2);
    const done = layout.heat <= COLD;
    if (done || performance.now() - sent >= INTERVAL_MS) {
      sent = performance.now();
      const [x, y] = [layout.x.slice(), layout.y.slice()];
      postMessage({ x, y, done }, [x.buffer, y.buffer]);
    }
    if (!done) setTimeout(run, 0);
  };
  run();
};
