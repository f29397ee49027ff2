// All else that happened: many changes of the same kind in one folder are one line.
import { html, useEffect, useState } from "../lib.js";
import { call } from "../api.js";
import { Failure, Nothing, Time, number } from "../ui.js";

const PAGE = 50;
const KINDS = [["", "All"], ["file", "Files"], ["change", "Calls"], ["task", "Tasks"], ["service", "Services"]];

export function Happened({ day, path, round }) {
  const [kind, setKind] = useState("");
  const [state, set] = useState({});
  const chosen = { since: day.since, until: day.until, limit: PAGE, ...(path && { path }), ...(kind && { kinds: [kind, "gap"] }) };
  const read = async (before, former, isCurrent = () => true) => {
    set((now) => ({ ...now, busy: true, error: null }));
    try {
      const found = await call("events_folded", { ...chosen, ...(before && { before }) });
      if (isCurrent()) set({ lines: [...former, ...found.lines], before: found.before, shown: former.length + PAGE });
    } catch (error) {
      if (isCurrent()) set((now) => ({ ...now, busy: false, error }));
    }
  };
  useEffect(() => {
    let current = true;
    read(null, [], () => current);
    return () => { current = false; };
  }, [day.since, path, kind, round]);
  const { lines, before, shown, error } = state;
  const more = () => (shown < lines.length ? set({ ...state, shown: shown + PAGE }) : read(before, lines));
  return html`<div class="row" role="group" aria-label="Kinds of events">${KINDS.map(([id, title]) => html`
      <button key=${id} aria-pressed=${String(kind === id)} onClick=${() => setKind(id)}>${title}</button>`)}</div>
    ${error && html`<${Failure} error=${error} again=${() => read(before, lines || [])} />`}
    ${!lines && !error && html`<p class="quiet" role="status">Loading…</p>`}
    ${lines && !lines.length && html`<${Nothing}>Nothing that is kept.<//>`}
    ${lines?.length > 0 && html`<ul class="plain events">${lines.slice(0, shown).map((each) => html`<${Line} key=${each.first} line=${each} />`)}</ul>`}
    ${(before || shown < lines?.length) && html`<button disabled=${state.busy} onClick=${more}>Earlier events</button>`}`;
}

function Line({ line }) {
  const { details = {}, count } = line;
  const why = details.outcome || details.cause || details.why || details.message;
  return html`<li><${Time} at=${line.at} /> <span class="badge">${line.kind}</span>${" "}
    ${count > 1 ? html`<code>${line.subject}</code>: ${line.text} <span class="quiet" title="Numbers of the events">(${number(line.first)} to ${number(line.last)})</span>`
      : html`<span class=${BAD.has(line.what) ? "bad" : undefined}>${line.what}</span> ${line.kind === "task" ? details.operation : html`<code>${line.subject}</code>`}
        ${details.former && html` <span class="quiet">was <code>${details.former}</code></span>`}${why && html` <span class="bad">${why}</span>`}`}
    ${line.who && html` <span class="quiet">by ${line.who}</span>`}</li>`;
}

const BAD = new Set(["failed", "died", "missing"]);
