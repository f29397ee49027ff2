// Calls that go on by themselves, and those that are made later.
import { html, useEffect, useState } from "../lib.js";
import { call } from "../api.js";
import { useLive } from "../app.js";
import { Action, Json, Loaded, Nothing, Table, Time, number, plural, useWork } from "../ui.js";

const INTERVAL_MS = 2000;
const WAIT_S = 50;
const STATES = { working: "busy", completed: "good", failed: "bad", cancelled: "quiet" };

export const TaskState = ({ state }) => html`<span class=${STATES[state]}>${state}</span>`;

export function Tasks() {
  const { overview } = useLive();
  // The live figures say how much runs; without them, the button reads again.
  const running = overview?.services.find((each) => each.service === "tasks")?.info?.working;
  const [limit, setLimit] = useState(50);
  const work = useWork(async () => {
    const [{ tasks, total }, { timers }] = await Promise.all([call("tasks_list", { limit }), call("timers_list")]);
    return { tasks, total, timers };
  }, [running, limit]);
  const works = work.value?.tasks.some((each) => each.state === "working");
  useEffect(() => {
    if (!works || work.busy) return;
    const timer = setTimeout(() => document.hidden || work.again(), INTERVAL_MS);
    return () => clearTimeout(timer);
  }, [works, work.busy, work.value]);
  return html`<h2>Tasks</h2>
    <p class="quiet">Your tasks of the last 24 hours. ${works ? "The list is read again while one runs." : html`<button onClick=${work.again}>Read again</button>`}</p>
    <${Loaded} work=${work}>${({ tasks, total, timers }) => html`
      ${!tasks.length && html`<${Nothing}>There are none. <code>tasks_start</code> makes a call that goes on without its client.<//>`}
      ${tasks.map((each) => html`<${Task} key=${each.id} task=${each} again=${work.again} />`)}
      ${total > tasks.length && limit < 500 && html`<button onClick=${() => setLimit(Math.min(500, limit + 100))}>More of ${plural(total, "task")}</button>`}
      <h2>Timers</h2><${Timers} timers=${timers} again=${work.again} />`}<//>`;
}

function Task({ task, again }) {
  const { progress, failure } = task;
  const works = task.state === "working";
  const [said, say] = useState("");
  const wait = async () => {
    let found = task;
    while (found.state === "working") found = await call("tasks_wait", { id: task.id, timeout_s: WAIT_S });
    say(`The task has ended: ${found.state}.`);
    again();
  };
  const cancel = async () => { await call("tasks_cancel", { id: task.id }); again(); };
  const named = `${task.operation} ${task.id.slice(0, 8)}`;
  return html`<article class="card" aria-label=${`Task ${named}`}>
    <p><code>${task.operation}</code> <${TaskState} state=${task.state} />, began <${Time} at=${task.started} />${task.ended && html`, ended <${Time} at=${task.ended} />`}
      ${" "}<span class="quiet" title=${task.id}>${task.id.slice(0, 8)}</span></p>
    ${works && progress && html`<p><progress aria-label=${`Progress of ${named}`} max=${progress.total ?? undefined} value=${progress.total == null ? undefined : progress.done}></progress>
      ${" "}${number(progress.done)}${progress.total != null && ` of ${number(progress.total)}`}${progress.message && `: ${progress.message}`}</p>`}
    ${failure && html`<p class="error">${failure.message} <span class="quiet">(${failure.kind}${failure.executed === "no" ? "" : `; done: ${failure.executed}`})</span></p>`}
    <p role="status">${said}</p>
    ${works && html`<div class="row"><${Action} label=${`Wait until ${named} ends`} act=${wait}>Wait until it ends<//>
      <${Action} label=${`Cancel ${named}`} act=${cancel} keep="Let it run" confirm=${`Cancel ${task.operation}? What it has done remains done.`}>Cancel the task<//></div>`}
    ${!works && html`<${Result} id=${task.id} />`}</article>`;
}

function Result({ id }) {
  const [open, set] = useState(false);
  const work = useWork(() => (open ? call("tasks_get", { id }) : null), [open]);
  return html`<details onToggle=${(event) => set(event.target.open)}><summary>Result</summary>
    ${open && html`<${Loaded} work=${work}>${(found) => found && html`<${Json} value=${found.result ?? found.failure ?? null} />`}<//>`}</details>`;
}

function Timers({ timers, again }) {
  const cancel = (id) => async () => { await call("timers_cancel", { id }); again(); };
  return html`<${Table} caption="Timers" rows=${timers} keyOf=${(row) => row.id} empty="There are none." columns=${[
    { key: "operation", title: "Operation", cell: (row) => html`<code>${row.operation}</code>` },
    { key: "next", title: "Next run", cell: (row) => html`<${Time} at=${row.next} />` },
    { key: "cron", title: "Runs", cell: (row) => (row.cron ? `${row.cron} (${row.time_zone})` : "once") },
    { key: "missed", title: "Missed runs", wide: true },
    { key: "cancel", cell: (row) => html`<${Action} label=${`Remove the timer ${row.operation} ${row.id}`} act=${cancel(row.id)}
      confirm=${`Remove the timer of ${row.operation}? Runs that have begun go on.`} keep="Keep it">Remove<//>` }]} />`;
}
