// Lines and squares in an image's pixels, without smoothing.
export class Pixels {
  constructor() {
    this.known = new Map();
  }

  begin(context, width, height) {
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.data = new Uint32Array(this.image.data.buffer);
    } else this.data.fill(0);
    Object.assign(this, { width, height });
  }

  end(context) {
    context.putImageData(this.image, 0, 0);
  }

  // A CSS colour as a number.
  colour(name) {
    if (!this.known.has(name)) {
      const probe = document.createElement("canvas").getContext("2d");
      probe.fillStyle = name;
      probe.fillRect(0, 0, 1, 1);
      this.known.set(name, new Uint32Array(probe.getImageData(0, 0, 1, 1).data.buffer)[0]);
    }
    return this.known.get(name);
  }

  line(x, y, toX, toY, colour) {
    const { width, height, data } = this;
    if ((x < 0 && toX < 0) || (y < 0 && toY < 0) || (x >= width && toX >= width) || (y >= height && toY >= height)) return;
    const steps = Math.max(1, Math.ceil(Math.max(Math.abs(toX - x), Math.abs(toY - y))));
    const [dx, dy] = [(toX - x) / steps, (toY - y) / steps];
    // Only the steps within the image.
    const [firstX, lastX] = within(x, dx, width);
    const [firstY, lastY] = within(y, dy, height);
    const last = Math.min(steps, lastX, lastY);
    const first = Math.max(0, firstX, firstY);
    for (let i = first, a = x + dx * first, b = y + dy * first; i <= last; i++, a += dx, b += dy) data[(b | 0) * width + (a | 0)] = colour;
  }

  square(x, y, half, colour) {
    const { width, height, data } = this;
    const [left, right] = [Math.max(0, Math.round(x - half)), Math.min(width, Math.round(x + half) + 1)];
    const [top, bottom] = [Math.max(0, Math.round(y - half)), Math.min(height, Math.round(y + half) + 1)];
    for (let row = top; row < bottom; row++) for (let at = row * width + left; at < row * width + right; at++) data[at] = colour;
  }
}

// The first and the last whole step at which a place lies in 0 to `end`.
function within(from, step, end) {
  if (step === 0) return from >= 0 && from < end ? [0, Infinity] : [1, 0];
  const [one, other] = [-from / step, (end - 1 - from) / step];
  return [Math.ceil(Math.min(one, other)), Math.floor(Math.max(one, other))];
}
