// A button that takes changes back. Its dialog first shows what would happen.
import { html, useId, useRef, useState } from "./lib.js";
import { call, preview } from "./api.js";
import { plural } from "./ui.js";

const SHOWN = 50;

// `what` names the changes for people, `chosen` chooses them for the operation.
export function Undo({ what, chosen, onDone, children = "Undo" }) {
  const [state, set] = useState({});
  const [merge, setMerge] = useState(false);
  const dialog = useRef();
  const title = useId();
  async function ask(how, merged, next) {
    set((before) => ({ ...before, busy: true, error: null }));
    try {
      set(next(await how("changes_undo", { ...chosen, ...(merged && { merge: true }) })));
    } catch (error) {
      set((before) => ({ ...before, busy: false, error }));
    }
  }
  const look = (merged) => ask(preview, merged, (seen) => ({ seen }));
  const open = () => { set({}); setMerge(false); dialog.current.showModal(); look(false); };
  const carryOut = () => ask(call, merge, (done) => { dialog.current.close(); onDone(done); return { done }; });
  const { seen, done } = state;
  const left = (found) => found.results.filter((each) => each.status === "skipped");
  return html`<span class="undo"><button aria-label=${`Undo ${what}`} onClick=${open}>${children}</button>
    ${done && html`${" "}<span role="status">${plural(done.undone, "path")} undone${done.skipped > 0 && html`, ${done.skipped} left as they are:`}</span>
      <${Refused} results=${left(done)} />`}
    <dialog ref=${dialog} aria-labelledby=${title}>
      <h2 id=${title}>Undo ${what}?</h2>
      <div role="status">${state.busy && !seen && "Looking what would happen…"}
        ${seen && html`<p>${seen.undone ? `${plural(seen.undone, "path")} would be as before:` : "Nothing can be undone."}</p>`}</div>
      ${seen && html`<ul>${seen.results.filter((each) => each.status !== "skipped").slice(0, SHOWN).map((each, index) => html`
          <li key=${index}>${UNDOING[each.kind] || each.kind} <code>${each.path}</code></li>`)}
          ${seen.undone > SHOWN && html`<li class="quiet">and ${seen.undone - SHOWN} more</li>`}</ul>
        ${seen.skipped > 0 && html`<p>${plural(seen.skipped, "path")} would be left as ${seen.skipped === 1 ? "it is" : "they are"}:</p>
          <${Refused} results=${left(seen)} />
          <p><label><input type="checkbox" checked=${merge} disabled=${state.busy} onChange=${(event) => { setMerge(event.target.checked); look(event.target.checked); }} />
            ${" "}Merge with what others wrote since, if it is in other lines</label></p>`}`}
      ${state.error && html`<p class="error" role="alert">${state.error.message}</p>`}
      <div class="row"><button class="main" disabled=${state.busy || !seen?.undone} onClick=${carryOut}>Undo${seen?.undone ? ` ${plural(seen.undone, "path")}` : ""}</button>
        <button autofocus onClick=${() => dialog.current.close()}>Cancel</button></div></dialog></span>`;
}

const UNDOING = { write: "restores the former content of", create: "removes", copy: "removes the copy", move: "moves back",
  trash: "takes out of the trash", restore: "puts back into the trash", folder: "removes the folder", rmdir: "makes the folder" };

const Refused = ({ results }) => html`<ul>${results.slice(0, SHOWN).map((each, index) => html`
  <li key=${index}><code>${each.path}</code> <strong>is left:</strong> ${each.reason}</li>`)}
  ${results.length > SHOWN && html`<li class="quiet">and ${results.length - SHOWN} more</li>`}</ul>`;
