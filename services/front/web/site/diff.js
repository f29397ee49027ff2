// Differences between texts: computed, and shown so that a reader sees them without colours, and a screen reader too.
import { html, useState } from "./lib.js";

const CONTEXT = 3;
const MOST_LINES = 1500;
const SHOWN_LINES = 400;

const linesOf = (text) => (text === "" ? [] : text.replace(/\n$/, "").split("\n"));

// Returns a unified diff; "" if the texts are equal. Long parts that differ are shown as removed and added whole.
export function unified(before, after, name) {
  if (before === after) return "";
  const [old, now] = [linesOf(before), linesOf(after)];
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail += 1;
  const from = Math.max(0, head - CONTEXT);
  const kept = Math.max(0, tail - CONTEXT);
  const middle = compared(old.slice(from, old.length - kept), now.slice(from, now.length - kept));
  const count = (signs) => middle.filter(([sign]) => signs.includes(sign)).length;
  const ends = before.endsWith("\n") === after.endsWith("\n") || !before || !after ? "" : "\n\\ The last line end differs";
  return `--- ${name}\n+++ ${name}\n@@ -${from + 1},${count("- ")} +${from + 1},${count("+ ")} @@\n${middle.map((each) => each.join("")).join("\n")}${ends}\n`;
}

// Lines with their signs, by the longest common subsequence.
function compared(old, now) {
  if (old.length > MOST_LINES || now.length > MOST_LINES)
    return [...old.map((line) => ["-", line]), ...now.map((line) => ["+", line])];
  const width = now.length + 1;
  const common = new Uint16Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1)
    for (let j = now.length - 1; j >= 0; j -= 1)
      common[i * width + j] = old[i] === now[j] ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) found.push([" ", old[i]]), (i += 1), (j += 1);
    else if (i < old.length && (j === now.length || common[(i + 1) * width + j] >= common[i * width + j + 1])) found.push(["-", old[i]]), (i += 1);
    else found.push(["+", now[j]]), (j += 1);
  }
  return found;
}

// A control character or one that reverses the direction must not hide what a line says.
const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
  (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function Diff({ text, label }) {
  const [all, show] = useState(false);
  const lines = text.replace(/\n$/, "").split("\n");
  let inside = false;
  return html`<div class="diff" role="group" tabindex="0" aria-label=${label}>${lines.slice(0, all ? lines.length : SHOWN_LINES).map((line, index) => {
      inside ||= line.startsWith("@@");
      const shown = visible(line) || " ";
      if (inside && line.startsWith("+")) return html`<ins key=${index}>${shown}</ins>`;
      if (inside && line.startsWith("-")) return html`<del key=${index}>${shown}</del>`;
      return html`<span key=${index} class=${line.startsWith("@@") || !inside ? "quiet" : undefined}>${shown}</span>`;
    })}</div>
    ${!all && lines.length > SHOWN_LINES && html`<button onClick=${() => show(true)}>Show all ${lines.length} lines</button>`}`;
}
