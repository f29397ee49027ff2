// One conversation: its turns page by page, tool calls folded, and a search in it.
import { html, useEffect, useRef, useState } from "../lib.js";
import { call } from "../api.js";
import { Facts, Failure, Highlighted, Loaded, Nothing, SearchForm, Time, classes, go, number, plural, useWork } from "../ui.js";

const PAGE = 100;

export const cost = (value, incomplete) => (value == null ? "–" : `${incomplete ? "≥ " : ""}$${value.toFixed(value < 0.1 ? 4 : 2)}`);

// `turn` is marked; `find` are words whose turns are listed.
export function Text({ hash, first, turn = "", find = "" }) {
  const [marked, mark] = useState(turn);
  const work = useWork(() => call("transcript_page", { hash, limit: PAGE, ...(turn ? { turn } : { first: Number(first) || 0 }) }), [hash, first, turn]);
  useEffect(() => mark(turn), [turn]);
  const place = (more) => `#/conversations/${hash}/text?${new URLSearchParams({ ...(find && { find }), ...more })}`;
  return html`<${SearchForm} label="Find in this conversation" value=${find} button="Find" onSearch=${(text) => go(`/conversations/${hash}/text`, { find: text.trim(), first })} />
    ${find && html`<${Hits} hash=${hash} find=${find} turn=${turn} place=${place} />`}
    <${Loaded} work=${work}>${(found) => (found === null ? html`<${Nothing}>There is no such conversation; it may have been deleted.<//>` : html`
      <${Sums} hash=${hash} total=${found.total} />
      <${Pages} found=${found} place=${place} />
      ${found.turns.map((each) => html`<${Turn} key=${each.hash} turn=${each} marked=${each.hash === marked} find=${find} names=${namesOf(found.turns)} />`)}
      <${Pages} found=${found} place=${place} />
      ${found.continues && found.first + found.turns.length === found.total && html`<p><a href=${`#/conversations/${hash}/tree`}>The conversation goes on</a> after this turn.</p>`}`)}<//>`;
}

// Adding up takes longer than a page, so it is asked for once the page is there.
function Sums({ hash, total }) {
  const work = useWork(() => call("transcript_page", { hash, limit: 1, summed: true }), [hash]);
  const spent = work.value?.spent;
  return html`<${Facts} facts=${{ turns: number(total), agent: spent?.agent, model: spent?.models.join(", "),
    "tokens sent": spent?.tokens.input ? number(spent.tokens.input) : "", "tokens received": spent?.tokens.output ? number(spent.tokens.output) : "",
    cost: spent?.cost_usd ? cost(spent.cost_usd, spent.cost_incomplete) : "" }} />
    ${work.error && html`<${Failure} error=${work.error} again=${work.again} />`}`;
}

// Where each call's result belongs: the name of its tool.
const namesOf = (turns) => new Map(turns.flatMap((each) => each.blocks).filter((each) => each.tool && each.call).map((each) => [each.call, each.tool]));

function Pages({ found: { first, total, turns }, place }) {
  if (total <= turns.length) return html`<br />`;
  const last = first + turns.length;
  const to = (at, name, there) => (there ? html`<a href=${place({ first: Math.max(0, at) })}>${name}</a>` : html`<span class="quiet">${name}</span>`);
  return html`<nav class="row pages" aria-label="Pages of the conversation">${to(0, "First", first > 0)} ${to(first - PAGE, "Earlier", first > 0)}
    <span>Turns ${number(first + 1)} to ${number(last)} of ${number(total)}</span>
    ${to(last, "Later", last < total)} ${to(total - PAGE, "Last", last < total)}</nav>`;
}

function Hits({ hash, find, turn, place }) {
  const work = useWork(() => call("transcript_find", { hash, query: find }), [hash, find]);
  return html`<${Loaded} work=${work}>${(found) => found && html`<p role="status">${found.total ? plural(found.total, "turn") : "No turn"} with these words${found.total > found.turns.length ? `; the first ${found.turns.length} are listed` : ""}.</p>
    ${found.total > 0 && html`<ol class="plain turns" aria-label="Turns found">${found.turns.map((each) => html`<li key=${each.hash}>
      <a href=${place({ turn: each.hash })} aria-current=${each.hash === turn ? "true" : undefined}>Turn ${number(each.number + 1)}</a> <b>${each.role}</b>
      ${" "}<${Highlighted} text=${each.preview} query=${find} /></li>`)}</ol>`}`}<//>`;
}

function Turn({ turn, marked, find, names }) {
  const element = useRef();
  // The marked turn comes into view and takes the focus.
  useEffect(() => {
    if (!marked) return;
    element.current.scrollIntoView({ block: "start" });
    element.current.focus({ preventScroll: true });
  }, [marked]);
  return html`<article class=${classes("turn", turn.role, marked && "marked")} ref=${element} tabindex="-1" aria-label=${`Turn ${turn.number + 1}, ${turn.role}${marked ? ", marked" : ""}`}>
    <p class="quiet"><b>${turn.role}</b> ${turn.model || ""}${turn.tokens ? `, ${plural(turn.tokens, "token")}` : ""} ${turn.at && html`<${Time} at=${turn.at} />`}</p>
    ${turn.gone ? html`<p class="quiet">Its content was deleted.</p>` : turn.blocks.map((block, index) => html`<${Block} key=${index} block=${block} hash=${turn.hash} index=${index} find=${find} names=${names} />`)}</article>`;
}

const SHORT = 70;

function Block({ block, hash, index, find, names }) {
  if (block.type === "tool_use") return html`<${Folded} block=${block} hash=${hash} index=${index}
    summary=${html`calls <code>${block.tool}</code> <span class="quiet">${shortened(block.text)}</span>`} />`;
  if (block.type === "tool_result") return html`<${Folded} block=${block} hash=${hash} index=${index} summary=${html`<span class=${block.is_error ? "bad" : undefined}>${block.is_error ? "error" : "result"}</span>${" "}
    of ${names.has(block.call) ? html`<code>${names.get(block.call)}</code>` : "a tool"}, ${plural(block.size || 0, "character")}`} />`;
  if (!block.text) return html`<span class="badge">${block.media_type || block.type}</span>`;
  return html`<${Said} block=${block} hash=${hash} index=${index} find=${find} />`;
}

const shortened = (text = "") => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text);

// The whole text of a block, which a page has only the beginning of.
async function whole(hash, index) {
  const node = await call("transcript_node", { hash });
  const block = node?.bucket.content[index] || {};
  return block.tool_input ? JSON.stringify(block.tool_input) : block.text || block.tool_output || "";
}

function Said({ block, hash, index, find }) {
  const [asked, ask] = useState(false);
  const work = useWork(() => (asked ? whole(hash, index) : block.text), [asked, block]);
  const cut = !asked && block.size > block.text.length;
  return html`<div class="text"><${Highlighted} text=${work.value ?? block.text} query=${find} /></div>
    ${cut && html`<button class="link" onClick=${() => ask(true)}>all ${number(block.size)} characters</button>`}
    ${work.error && html`<${Failure} error=${work.error} again=${work.again} />`}`;
}

// A tool call or its result, shown and loaded when it is unfolded.
function Folded({ block, hash, index, summary }) {
  const [open, set] = useState(false);
  return html`<details class="call" onToggle=${(event) => set(event.currentTarget.open)}><summary>${summary}</summary>
    ${open && html`<${Unfolded} block=${block} hash=${hash} index=${index} />`}</details>`;
}

function Unfolded({ block, hash, index }) {
  const work = useWork(() => (block.size > (block.text || "").length ? whole(hash, index) : block.text || ""), [block]);
  const name = block.type === "tool_use" ? `Arguments of ${block.tool}` : "Result";
  return html`<${Loaded} work=${work}>${(text) => (text ? html`<pre tabindex="0" aria-label=${name}>${readable(text)}</pre>` : html`<${Nothing}>Nothing.<//>`)}<//>`;
}

function readable(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
