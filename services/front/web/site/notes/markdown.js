// A note's Markdown as DOM nodes. They run nothing, and nothing is loaded from elsewhere: only allowed elements remain,
// and pictures come from files below the roots.
import { Marked } from "../lib/marked.mjs";
import "../lib/purify.mjs";
import { file } from "../api.js";
import { noteAt, tagAt } from "./address.js";
import { fillEmbeds } from "./embeds.js";

const purify = globalThis.DOMPurify;

const TAGS = ("a abbr b blockquote br caption code dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i ins kbd li mark ol p pre "
  + "q s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var").split(" ");
const ATTRIBUTES = "align alt class colspan data-alt data-embed data-image data-wiki href open rowspan start title".split(" ");
const KEPT = /([a-z-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'=<>`]+))/gi;
const OF_HTML = new Set(["align", "alt", "colspan", "href", "rowspan", "start", "title"]);
const WITH_CONTENT = /<(script|style|template|iframe|object|svg|math|noscript|textarea|title|xmp|select)\b[\s\S]*?(?:<\/\1\s*>|$)/gi;

const escaped = (text) => text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);

const pictureTag = (address, alt) => `<span data-image="${escaped(address)}" data-alt="${escaped(alt || "")}"></span>`;

// Raw HTML, rebuilt from the allowed elements, so that nothing else is ever parsed: the parser would already report
// styles and handlers to the page's policy.
function ofHtml(text) {
  const shown = text.replace(/<!--[\s\S]*?(?:-->|$)/g, "").replace(WITH_CONTENT, "");
  let found = "";
  let at = 0;
  for (const match of shown.matchAll(/<(\/?)([a-z][a-z0-9]*)((?:\s[^<>]*)?)>/gi)) {
    found += entities(shown.slice(at, match.index)) + element(match[1], match[2].toLowerCase(), match[3]);
    at = match.index + match[0].length;
  }
  return found + entities(shown.slice(at));
}

const entities = (text) => text.replace(/</g, "&lt;").replace(/>/g, "&gt;");

function element(slash, tag, given) {
  const attributes = new Map([...given.matchAll(KEPT)].map(([, name, ...values]) => [name.toLowerCase(), plain(values.find((each) => each !== undefined))]));
  if (tag === "img") return pictureTag(attributes.get("src") || "", attributes.get("alt"));
  if (!TAGS.includes(tag)) return "";
  const kept = [...attributes].filter(([name]) => OF_HTML.has(name)).map(([name, value]) => ` ${name}="${escaped(value)}"`);
  return `<${slash}${tag}${slash ? "" : kept.join("")}${!slash && tag === "details" && /\bopen\b/i.test(given) ? " open" : ""}>`;
}

const plain = (text) => text.replace(/&quot;/g, '"').replace(/&#39;/g, "'").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");

const WIKI = {
  name: "wiki", level: "inline",
  start: (source) => source.match(/!?\[\[/)?.index,
  tokenizer(source) {
    const found = /^(!?)\[\[([^[\]\n|]+)(?:\|([^[\]\n]*))?\]\]/.exec(source);
    return found ? { type: "wiki", raw: found[0], embed: found[1], written: found[2], alias: found[3] } : undefined;
  },
  renderer: ({ embed, written, alias }) => (embed ? `<span data-embed="${escaped(written)}" data-alt="${escaped(alias || "")}"></span>`
    : `<a data-wiki="${escaped(written)}">${escaped(alias || nameOf(written))}</a>`),
};

const MARKED = {
  name: "marked", level: "inline",
  start: (source) => source.match(/==/)?.index,
  tokenizer(source) {
    const found = /^==(?=\S)([^\n=]+?)==/.exec(source);
    return found ? { type: "marked", raw: found[0], tokens: this.lexer.inlineTokens(found[1]) } : undefined;
  },
  renderer(token) { return `<mark>${this.parser.parseInline(token.tokens)}</mark>`; },
};

const comment = (level) => ({
  name: `comment-${level}`, level,
  start: (source) => source.match(/%%/)?.index,
  tokenizer(source) {
    const found = /^%%[\s\S]+?%%(?:\n+|$)?/.exec(source);
    return found ? { type: `comment-${level}`, raw: found[0] } : undefined;
  },
  renderer: () => "",
});

const parser = new Marked({
  gfm: true,
  extensions: [WIKI, MARKED, comment("block"), comment("inline")],
  renderer: {
    html: ({ text }) => ofHtml(text),
    image: ({ href, text }) => pictureTag(href, text),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

// `Note#Heading` is shown as in Obsidian.
const nameOf = (written) => written.replace(/\\$/, "").replace(/#/g, " > ").replace(/^ > /, "");

export function key(written) {
  const text = written.replace(/\\$/, "").trim();
  try {
    return decodeURI(text);
  } catch {
    return text;
  }
}

// The links of a note by how they are written; those in the text before those of its properties.
export const linksOf = (links) => new Map([...links].sort((one, other) => one.line - other.line).map((each) => [key(each.written), each]));

// Fills an element with the Markdown of a note. `around` is {id, links, chain}: the note, its links (of `linksOf`), and
// the notes that embed it. Returns a function that frees the pictures.
export function fill(place, text, around) {
  const addresses = [];
  const ended = { now: false };
  const kept = purify.sanitize(parser.parse(text), {
    RETURN_DOM_FRAGMENT: true, ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
    // They are names, which may contain a colon; `direct` and `picture` decide what they become.
    ADD_URI_SAFE_ATTR: ATTRIBUTES.filter((each) => each.startsWith("data-")),
  });
  levels(kept, around.chain.length > 0);
  boxes(kept);
  for (const link of kept.querySelectorAll("a")) direct(link, around);
  tags(kept);
  const show = async (box, path, alt) => {
    const address = URL.createObjectURL(await file(path));
    addresses.push(address);
    if (ended.now) return URL.revokeObjectURL(address);
    box.replaceWith(Object.assign(document.createElement("img"), { src: address, alt: alt || path.split("/").pop() }));
  };
  for (const box of kept.querySelectorAll("[data-image]")) picture(box, around, show);
  fillEmbeds(kept, around, { show, ended, fill: (...given) => addresses.push(fill(...given)) });
  place.replaceChildren(kept);
  return () => {
    ended.now = true;
    addresses.forEach((each) => (typeof each === "function" ? each() : URL.revokeObjectURL(each)));
  };
}

// The page's own heading is the first level, and no level is left out. In an embedded note, headings are paragraphs.
function levels(kept, embedded) {
  let before = 1;
  for (const heading of kept.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const level = Math.min(Number(heading.tagName[1]) + 1, before + 1, 6);
    if (!embedded) before = level;
    const made = document.createElement(embedded ? "p" : `h${level}`);
    made.dataset.heading = heading.textContent.trim().toLowerCase();
    if (embedded) made.className = "heading";
    made.append(...heading.childNodes);
    heading.replaceWith(made);
  }
}

// Wide tables and code scroll by themselves, with the keyboard too.
function boxes(kept) {
  for (const table of kept.querySelectorAll("table")) {
    const box = document.createElement("div");
    box.className = "wide";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Table");
    table.replaceWith(box);
    box.append(table);
  }
  for (const code of kept.querySelectorAll("pre")) {
    code.tabIndex = 0;
    code.setAttribute("aria-label", "Code");
  }
}

const FOREIGN = /^(?:https?:|mailto:|tel:|\/\/)/i;

function direct(link, around) {
  const written = link.dataset.wiki ?? link.getAttribute("href") ?? "";
  if (!link.dataset.wiki && FOREIGN.test(written)) {
    link.rel = "noreferrer noopener";
    link.target = "_blank";
    return;
  }
  const [, heading = ""] = written.split("#");
  const found = around.links.get(key(written));
  if (written.startsWith("#")) link.href = noteAt(around.id, { heading: key(heading) });
  else if (found?.id) link.href = noteAt(found.id, { heading: key(heading) });
  else replaced(link, found?.file, written);
  link.removeAttribute("data-wiki");
}

// A link that leads nowhere, or to a file that is no note.
function replaced(link, path, written) {
  const text = document.createElement("span");
  text.append(...link.childNodes);
  text.className = path ? "file" : "broken";
  text.title = path ? `A file: ${path}` : `There is no note or file “${key(written)}”.`;
  if (!path) text.append(said(" (missing)"));
  link.replaceWith(text);
}

function said(text) {
  return Object.assign(document.createElement("span"), { className: "skip-inline", textContent: text });
}

const TAG = /(?<![^\s(,;])#([\p{L}\p{N}_/-]*[\p{L}_-][\p{L}\p{N}_/-]*)/gu;

function tags(kept) {
  const walker = document.createTreeWalker(kept, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) if (walker.currentNode.data.includes("#") && !walker.currentNode.parentElement?.closest("a, code, pre, .broken, .file")) texts.push(walker.currentNode);
  for (const node of texts) {
    const parts = [];
    let at = 0;
    for (const match of node.data.matchAll(TAG)) {
      parts.push(node.data.slice(at, match.index), Object.assign(document.createElement("a"), { href: tagAt(match[1]), textContent: match[0], className: "tag" }));
      at = match.index + match[0].length;
    }
    if (at) node.replaceWith(...parts, node.data.slice(at));
  }
}

function picture(box, around, show) {
  const { image: address, alt } = box.dataset;
  const path = around.links.get(key(address))?.file;
  if (/^data:image\/(?:png|jpeg|gif|webp);/i.test(address)) box.replaceWith(Object.assign(document.createElement("img"), { src: address, alt: alt || "Picture" }));
  else if (path) show(box, path, alt).catch((error) => missing(box, `${alt || address}: ${error.message}`));
  else if (FOREIGN.test(address)) {
    const link = Object.assign(document.createElement("a"), { href: address, rel: "noreferrer noopener", target: "_blank", textContent: address });
    box.replaceChildren(alt ? `${alt} (` : "Picture elsewhere (", link, ")");
  } else missing(box, `${alt ? `${alt}: ` : ""}picture ${address} is missing`);
}

export function missing(box, text) {
  box.className = "broken";
  box.textContent = text;
}
