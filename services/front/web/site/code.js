// Text as lines with the colours of its language. The colours are classes, and no HTML is made from the text.
import { html, useEffect, useMemo, useRef } from "./lib.js";
import { useWork } from "./ui.js";

const ENDINGS = {
  bash: "sh bash zsh", c: "c h", cpp: "cpp cc cxx hpp hh", css: "css scss less", go: "go", ini: "ini toml cfg conf", java: "java kt", javascript: "js mjs cjs jsx",
  json: "json jsonl ipynb", markdown: "md markdown", python: "py pyi", rust: "rs", sql: "sql", typescript: "ts tsx mts", xml: "xml html htm svg vue", yaml: "yaml yml",
};
const LANGUAGES = new Map(Object.entries(ENDINGS).flatMap(([language, endings]) => endings.split(" ").map((ending) => [ending, language])));
// Longer text is shown without colours, as they would take too long.
const MOST = 300_000;

const languageOf = (name) => LANGUAGES.get(name.split(".").pop().toLowerCase());

// Lines of [class, text] parts.
async function coloured(text, name) {
  const language = languageOf(name);
  if (!language || text.length > MOST) return plain(text);
  const { default: highlighter } = await import("./lib/highlight.mjs");
  const lines = [[]];
  const add = (node, scope) => {
    if (typeof node !== "string") return node.children.forEach((child) => add(child, node.scope ? node.scope.split(".")[0] : scope));
    node.split("\n").forEach((part, index) => {
      if (index) lines.push([]);
      if (part) lines.at(-1).push([scope, part]);
    });
  };
  add(highlighter.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode, "");
  return lines;
}

const plain = (text) => text.split("\n").map((line) => (line ? [["", line]] : []));

// The lines, without colours until they are known.
export function useColoured(text, name) {
  const work = useWork(() => coloured(text, name), [text, name]);
  const bare = useMemo(() => plain(text), [text]);
  return work.busy || !work.value ? bare : work.value;
}

export const Parts = ({ line }) => line.map(([scope, text], index) => (scope ? html`<span key=${index} class=${`c-${scope}`}>${text}</span>` : text));

// `from` and `to` are the marked lines, from 1.
export function Code({ text, name, label, from = 0, to = from }) {
  const lines = useColoured(text, name);
  const element = useRef();
  useEffect(() => { if (from) element.current?.querySelector(".marked")?.scrollIntoView({ block: "center" }); }, [from]);
  return html`<pre class="code lines" tabindex="0" aria-label=${label} ref=${element}>${lines.map((line, index) => html`
    <span key=${index} class=${from && index + 1 >= from && index + 1 <= to ? "line marked" : "line"}><${Parts} line=${line} />${"\n"}</span>`)}</pre>`;
}
