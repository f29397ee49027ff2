// What agents did on a day: the files that they changed, the tasks that ended, and all else that happened.
import { html, useEffect, useState } from "../lib.js";
import { follow } from "../api.js";
import { SearchForm, Tabs, Title, go } from "../ui.js";
import { Changes } from "../today/changes.js";
import { Happened } from "../today/happened.js";
import { Tasks } from "../today/tasks.js";

export const title = "Today";
export const order = 5;

const TABS = [["#/today", "What was done"], ["#/today/tasks", "Tasks and timers"]];

export function View({ parts: [what = ""], parameters }) {
  return html`<${Title}>${what === "tasks" ? "Tasks and timers" : "Today"}<//>
    <${Tabs} label="Parts of this view" tabs=${TABS} current=${what === "tasks" ? "#/today/tasks" : "#/today"} />
    ${what === "tasks" ? html`<${Tasks} />` : html`<${Day} ...${parameters} />`}`;
}

const named = (date) => [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((each) => String(each).padStart(2, "0")).join("-");

// A day here, from midnight to midnight: {name, since, until, before, after}.
function dayOf(given) {
  const parts = /^(\d{4})-(\d\d)-(\d\d)$/.exec(given);
  const now = parts ? new Date(Number(parts[1]), Number(parts[2]) - 1, Number(parts[3])) : new Date();
  const at = (days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() + days);
  const today = named(new Date());
  return { name: named(now), title: at(0).toLocaleDateString([], { dateStyle: "full" }), isToday: named(now) === today,
    since: at(0).getTime() / 1000, until: at(1).getTime() / 1000, before: named(at(-1)), after: named(now) < today ? named(at(1)) : "" };
}

function Day({ day: given = "", path = "", offset = "0" }) {
  const day = dayOf(given);
  const [round, next] = useState(0);
  const address = (more) => ["/today", { ...(!day.isToday && { day: day.name }), path, ...more }];
  const to = (name) => go("/today", { ...(name !== named(new Date()) && { day: name }), path });
  return html`<div class="row days"><button aria-label="The day before" onClick=${() => to(day.before)}>←</button>
      <input type="date" aria-label="Day" value=${day.name} max=${named(new Date())} onChange=${(event) => event.target.value && to(event.target.value)} />
      <button aria-label="The day after" disabled=${!day.after} onClick=${() => to(day.after)}>→</button>
      <strong>${day.title}</strong>${!day.isToday && html`<button onClick=${() => to(named(new Date()))}>Today</button>`}</div>
    ${day.isToday && html`<${News} key=${round} onShow=${() => next((count) => count + 1)} />`}
    <${SearchForm} label="Only a file or what is below a folder" value=${path} button="Filter" onSearch=${(text) => go(...address({ path: text }))} />
    <h2>Changed files</h2><p class="quiet">The latest first. An undo is a change, too, and can be undone.</p>
    <${Changes} day=${day} path=${path} offset=${Number(offset) || 0} round=${round} address=${address} />
    <h2>What happened</h2>
    <${Happened} day=${day} path=${path} round=${round} />`;
}

// Says that there is more, and leaves it to the reader when the list changes.
function News({ onShow }) {
  const [some, set] = useState(false);
  useEffect(() => follow({ kinds: "change,task" }, (event) => {
    // The undos of this page are shown already.
    if (event.what === "changes_undo") return true;
    set(true);
    return false;
  }), []);
  return html`<p role="status">${some && html`<button class="main" onClick=${onShow}>More has happened: show it</button>`}</p>`;
}
