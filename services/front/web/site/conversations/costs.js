// What conversations cost by day, project and model.
import { html } from "../lib.js";
import { call } from "../api.js";
import { Loaded, Nothing, Select, Table, go, number, plural, useWork } from "../ui.js";
import { cost } from "./text.js";

const SPANS = [["7", "the last 7 days"], ["30", "the last 30 days"], ["90", "the last 90 days"], ["365", "the last 365 days"], ["3650", "the last 10 years"]];
const DAY_MS = 86_400_000;
const MOST_BARS = 366;

// Local days: the offset is that of today.
const dayOf = (ms) => new Date(ms - new Date().getTimezoneOffset() * 60_000).toISOString().slice(0, 10);

export function Costs({ days = "30" }) {
  const work = useWork(() => {
    const first = new Date(Date.now() - (Number(days) - 1) * DAY_MS);
    first.setHours(0, 0, 0, 0);
    return call("transcript_costs", { since: first.toISOString(), offset_s: -60 * new Date().getTimezoneOffset() });
  }, [days]);
  return html`<div class="row"><${Select} label="Costs of" value=${days} options=${SPANS} onChange=${(value) => go("/conversations/costs", { days: value })} /></div>
    <${Loaded} work=${work}>${({ shares, prices_of: prices }) => (shares.length ? html`<${Shown} shares=${shares} days=${Number(days)} />
      <p class="quiet">By the list prices of ${prices}, for the calls whose tokens were recorded.</p>` : html`<${Nothing}>No call of a model with its tokens was recorded in this time.<//>`)}<//>`;
}

// The sums of a column's values, the greatest cost first.
function sums(shares, key) {
  const found = new Map();
  for (const each of shares) {
    const sum = found.get(each[key]) || { name: each[key], cost: 0, calls: 0, input: 0, output: 0, unpriced: 0 };
    sum.cost += each.cost_usd || 0;
    sum.unpriced += each.cost_usd == null ? each.calls : 0;
    for (const figure of ["calls", "input", "output"]) sum[figure] += each[figure];
    found.set(each[key], sum);
  }
  return [...found.values()].sort((one, other) => other.cost - one.cost);
}

function Shown({ shares, days }) {
  const byDay = sums(shares, "day").sort((one, other) => (one.name < other.name ? -1 : 1));
  const all = shares.reduce((sum, each) => sum + (each.cost_usd || 0), 0);
  const unpriced = [...new Set(shares.filter((each) => each.cost_usd == null).map((each) => each.model || "not stated"))];
  return html`<p><b>${cost(all, unpriced.length)}</b> for ${plural(shares.reduce((sum, each) => sum + each.calls, 0), "call")}.
      ${unpriced.length > 0 && html` <span class="quiet">No price is known for ${unpriced.join(", ")}.</span>`}</p>
    <h2>By day</h2><${Days} rows=${byDay} days=${days} />
    <details><summary>The days as a table</summary><${Figures} title="Day" rows=${byDay} caption="Costs by day" /></details>
    <div class="columns"><section><h2>By project</h2><${Figures} title="Project" rows=${sums(shares, "project")} caption="Costs by project" bars /></section>
      <section><h2>By model</h2><${Figures} title="Model" rows=${sums(shares, "model")} caption="Costs by model" bars /></section></div>`;
}

function Days({ rows, days }) {
  const known = new Map(rows.map((each) => [each.name, each.cost]));
  const from = Math.min(days, MOST_BARS);
  const names = Array.from({ length: from }, (_, index) => dayOf(Date.now() - (from - 1 - index) * DAY_MS));
  const shown = days > MOST_BARS ? rows.map((each) => each.name) : names;
  const most = Math.max(...rows.map((each) => each.cost));
  const width = 600 / shown.length;
  const dearest = rows.find((each) => each.cost === most);
  const text = `Costs by day from ${shown[0]} to ${shown.at(-1)}: at most ${cost(most)}, on ${dearest.name}`;
  return html`<figure class="days"><figcaption>${text}</figcaption>
    <svg class="chart bars" viewBox="0 0 600 140" preserveAspectRatio="none" role="img" aria-label=${text}>${shown.map((day, index) => {
      const height = most ? ((known.get(day) || 0) / most) * 132 : 0;
      return html`<rect key=${day} x=${index * width + width * 0.1} width=${width * 0.8} y=${139 - height} height=${height}><title>${day}: ${cost(known.get(day) || 0)}</title></rect>`;
    })}</svg></figure>`;
}

function Figures({ title, rows, caption, bars }) {
  const most = Math.max(...rows.map((each) => each.cost)) || 1;
  return html`<${Table} caption=${caption} rows=${rows} keyOf=${(row) => row.name} sort=${bars ? "cost" : "name"} descending=${bars} columns=${[
    { key: "name", title, cell: (row) => row.name || html`<span class="quiet">not stated</span>` },
    { key: "cost", title: "Cost", right: true, cell: (row) => (row.unpriced === row.calls ? "–" : cost(row.cost, row.unpriced)) },
    ...(bars ? [{ key: "share", title: "Share", value: (row) => row.cost, cell: (row) => html`<span class="bar" style=${{ width: `${(row.cost / most) * 100}%` }}></span>` }] : []),
    { key: "calls", title: "Calls", right: true, cell: (row) => number(row.calls) },
    { key: "input", title: "Tokens sent", right: true, wide: true, cell: (row) => number(row.input) },
    { key: "output", title: "Received", right: true, wide: true, cell: (row) => number(row.output) },
  ]} />`;
}
