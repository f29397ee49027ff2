// Past conversations: the list, costs, one with its text and the tree of its branches, and a search.
import { html } from "../lib.js";
import { call } from "../api.js";
import { Costs } from "../conversations/costs.js";
import { Text, cost } from "../conversations/text.js";
import { More, usePages } from "../paged.js";
import { Highlighted, Loaded, Nothing, SearchForm, Select, Table, Tabs, Time, Title, go, number, plural, useWork } from "../ui.js";

export const title = "Conversations";
export const order = 50;

export function View({ parts, parameters }) {
  if (parts[0] === "find") return html`<${Found} ...${parameters} />`;
  if (parts[0] && parts[0] !== "costs")
    return html`<${Conversation} key=${parts[0]} hash=${parts[0]} tab=${parts[1] || "text"} parameters=${parameters} />`;
  const place = parts[0] ? "#/conversations/costs" : "#/conversations";
  return html`<${Title}>Conversations<//><${Tabs} label="Parts of the conversations" tabs=${TABS} current=${place} />
    ${parts[0] ? html`<${Costs} ...${parameters} />` : html`<${List} ...${parameters} />`}`;
}

const TABS = [["#/conversations", "Conversations"], ["#/conversations/costs", "Costs"]];
const SORTED = { ended: "newest", turns: "turns", tokens: "tokens", cost_usd: "cost" };

const tokens = (row) => (row.tokens ? row.tokens.input + row.tokens.output : null);

function List({ query = "", project = "", agent = "", since = "", sort = "newest" }) {
  const asked = { query, project, agent, sort, limit: 100, ...(since && { since }) };
  const work = usePages(async (cursor) => {
    const found = await call("chats_list", { ...asked, ...(cursor && { cursor }) });
    return { ...found, items: found.conversations, next: found.next_cursor };
  }, [JSON.stringify(asked)]);
  const column = Object.entries(SORTED).find(([, name]) => name === sort)?.[0] || "ended";
  const order = (key) => set({ sort: key === "ended" && sort === "newest" ? "oldest" : SORTED[key] });
  const set = (more) => go("/conversations", { query, project, agent, since, sort, ...more });
  const names = (of, chosen) => [["", "all"], ...[...new Set([...(work.value?.items || []).map(of), chosen])].filter(Boolean).sort().map((each) => [each, each])];
  return html`<${SearchForm} label="What was said" button="Search inside" onSearch=${(text) => go("/conversations/find", { query: text, project, agent })} />
    <div class="row"><label>Title <input value=${query} onChange=${(event) => set({ query: event.target.value })} /></label>
      <${Select} label="Project" value=${project} options=${names((row) => row.project, project)} onChange=${(value) => set({ project: value })} />
      <${Select} label="Agent" value=${agent} options=${names((row) => row.agent, agent)} onChange=${(value) => set({ agent: value })} />
      <${Select} label="Since" value=${since} options=${[["", "ever"], ["today", "today"], ["last week", "last week"], ["last month", "last month"]]} onChange=${(value) => set({ since: value })} />
      <${Select} label="Order" value=${sort} options=${["newest", "oldest", "turns", "tokens", "cost"]} onChange=${(value) => set({ sort: value })} /></div>
    <${Loaded} work=${work}>${(found) => html`<p class="quiet">${plural(found.total, "conversation")}${found.cost_usd != null ? `, ${cost(found.cost_usd, found.cost_incomplete)} in all` : ""}.
        ${found.unpriced.length > 0 && ` No price is known for ${found.unpriced.join(", ")}.`}</p>
      <${Table} caption="Conversations" rows=${found.items} sort=${column} descending=${sort !== "oldest"} onSort=${order} keyOf=${(row) => row.id} empty="None yet: linckia import-chats reads those of your agents." columns=${[
        { key: "title", title: "Title", unsorted: true, cell: (row) => html`<a href=${`#/conversations/${row.hash}`}>${row.title || "(without a title)"}</a>` },
        { key: "project", title: "Project", unsorted: true, wide: true }, { key: "agent", title: "Agent", unsorted: true }, { key: "model", title: "Model", unsorted: true, wide: true },
        { key: "ended", title: "Ended", cell: (row) => html`<${Time} at=${row.ended} />` }, { key: "turns", title: "Turns", right: true },
        { key: "tokens", title: "Tokens", right: true, value: tokens, cell: (row) => (row.tokens?.estimated ? "≈ " : "") + number(tokens(row)) },
        { key: "cost_usd", title: "Cost", right: true, cell: (row) => cost(row.cost_usd, row.cost_incomplete) },
      ]} />
      <${More} pages=${work} total=${found.total} />`}<//>`;
}

function Found({ query = "", project = "", agent = "" }) {
  const work = useWork(() => (query ? call("search", { query, project, agent, top_k: 30, distinct: true }) : null), [query, project, agent]);
  return html`<p><a href="#/conversations">Conversations</a></p><${Title}>Search in conversations<//>
    <${SearchForm} label="What was said" value=${query} onSearch=${(text) => go("/conversations/find", { query: text, project, agent })} />
    <${Loaded} work=${work}>${(found) => found && (found.results.length ? found.results.map((hit) => html`<article class="card" key=${hit.hash}>
      <h2><a href=${`#/conversations/${hit.hash}?turn=${hit.hash}`}>${hit.lineage[0]?.text.slice(0, 90) || hit.hash}</a></h2>
      <p class="text"><b>${hit.role}</b>: <${Highlighted} text=${hit.preview.slice(0, 600)} query=${query} /></p>
      <p class="quiet">Score ${number(hit.score, 2)}, turn ${hit.depth}</p></article>`) : html`<${Nothing}>Nothing was found.<//>`)}<//>`;
}

function Conversation({ hash, tab, parameters }) {
  const base = `#/conversations/${hash}`;
  return html`<p><a href="#/conversations">Conversations</a></p><${Title}>Conversation<//>
    <${Tabs} label="Parts of the conversation" current=${`${base}/${tab}`} tabs=${[[`${base}/text`, "Text"], [`${base}/tree`, "Branches"]]} />
    ${tab === "tree" ? html`<${Branches} hash=${hash} />` : html`<${Text} hash=${hash} ...${parameters} />`}`;
}

function Branches({ hash }) {
  const work = useWork(() => call("transcript_tree", { hash, limit: 2000 }), [hash]);
  return html`<${Loaded} work=${work}>${(found) => {
    if (found === null) return html`<${Nothing}>There is no such conversation; it may have been deleted.<//>`;
    const below = new Map();
    found.nodes.forEach((each) => below.set(each.parent_hash || "", [...(below.get(each.parent_hash || "") || []), each]));
    const ends = found.nodes.filter((each) => !below.has(each.hash)).length;
    return html`<p class="quiet">${plural(found.nodes.length, "turn")}, ${plural(ends, "branch", "branches")}${found.complete ? "" : "; not all are shown"}.</p>
      <${Run} start=${below.get("")?.[0]} below=${below} chosen=${hash} />`;
  }}<//>`;
}

// A run of turns until the conversation branches or ends; long runs are folded.
function Run({ start, below, chosen }) {
  const turns = [];
  let next = start;
  while (next) {
    turns.push(next);
    const after = below.get(next.hash) || [];
    next = after.length === 1 ? after[0] : null;
  }
  const branches = below.get(turns.at(-1)?.hash) || [];
  const shown = turns.length > 6 ? [...turns.slice(0, 3), null, ...turns.slice(-2)] : turns;
  return html`${shown.map((each, index) => (each === null ? html`<p class="quiet" key=${index}>… ${turns.length - 5} more turns</p>` : html`
    <p key=${each.hash}><a href=${`#/conversations/${each.hash}`} aria-current=${each.hash === chosen ? "true" : undefined}><b>${each.role}</b></a> ${each.preview.slice(0, 140)}
      <span class="quiet"> ${each.at && html`<${Time} at=${each.at} />`}${each.tokens ? `, ${plural(each.tokens, "token")}` : ""}</span></p>`))}
    ${branches.map((each) => html`<div class="tree" key=${each.hash}><${Run} start=${each} below=${below} chosen=${chosen} /></div>`)}`;
}
