// A force-directed layout in typed arrays: springs along the edges, repulsion between nodes in neighbouring cells of a
// grid, and a pull to the centre. One step is linear in nodes and edges.
export class Layout {
  constructor(count, edges) {
    this.count = count;
    this.edges = edges;
    this.x = new Float32Array(count);
    this.y = new Float32Array(count);
    this.vx = new Float32Array(count);
    this.vy = new Float32Array(count);
    this.degree = new Uint32Array(count);
    this.heat = 1;
    // The next node in the same slot of the grid, and each node's cell.
    this.next = new Int32Array(count);
    this.columns = new Int32Array(count);
    this.rows = new Int32Array(count);
    this.slots = new Int32Array(2 ** Math.ceil(Math.log2(2 * count + 16)));
    edges.forEach(([one, other]) => { this.degree[one]++; this.degree[other]++; });
    for (let i = 0; i < count; i++) {
      // A sunflower's spiral, which spreads the nodes evenly.
      const radius = 14 * Math.sqrt(i);
      this.x[i] = radius * Math.cos(i * 2.399963);
      this.y[i] = radius * Math.sin(i * 2.399963);
    }
  }

  step() {
    const { count, x, y, vx, vy, next } = this;
    const cell = 90;
    // A hash table of cells in typed arrays: the first node of each slot, and the cell that it belongs to.
    const slots = this.slots;
    const mask = slots.length - 1;
    slots.fill(-1);
    const slotOf = (column, row) => (Math.imul(column, 73856093) ^ Math.imul(row, 19349663)) & mask;
    const columns = this.columns;
    const rows = this.rows;
    for (let i = 0; i < count; i++) {
      columns[i] = Math.floor(x[i] / cell);
      rows[i] = Math.floor(y[i] / cell);
      const slot = slotOf(columns[i], rows[i]);
      next[i] = slots[slot];
      slots[slot] = i;
    }
    // In crowded cells a sample of the pairs is enough.
    const most = count > 2000 ? 10 : 32;
    for (let i = 0; i < count; i++) {
      for (let side = 0; side < 5; side++) {
        const column = columns[i] + (side > 1 ? 1 : 0);
        const row = rows[i] + (side === 1 || side === 4 ? 1 : side === 2 ? -1 : 0);
        let left = most;
        for (let j = side ? slots[slotOf(column, row)] : next[i]; j >= 0 && left-- > 0; j = next[j]) {
          if (columns[j] !== column || rows[j] !== row) continue;
          const dx = x[i] - x[j] || 0.1;
          const dy = y[i] - y[j] || 0.1;
          const force = 60 / (dx * dx + dy * dy + 30);
          vx[i] += dx * force; vy[i] += dy * force;
          vx[j] -= dx * force; vy[j] -= dy * force;
        }
      }
    }
    for (const [one, other] of this.edges) {
      const dx = x[other] - x[one];
      const dy = y[other] - y[one];
      const length = Math.sqrt(dx * dx + dy * dy) || 1;
      const pull = (0.06 * (length - 46)) / length / Math.sqrt(Math.max(this.degree[one], this.degree[other]));
      vx[one] += dx * pull; vy[one] += dy * pull;
      vx[other] -= dx * pull; vy[other] -= dy * pull;
    }
    for (let i = 0; i < count; i++) {
      vx[i] = (vx[i] - x[i] * 0.002) * 0.6;
      vy[i] = (vy[i] - y[i] * 0.002) * 0.6;
      const speed = Math.hypot(vx[i], vy[i]);
      const most = 30 * this.heat;
      const factor = speed > most ? most / speed : 1;
      x[i] += vx[i] * factor;
      y[i] += vy[i] * factor;
    }
    this.heat *= 0.985;
  }
}
