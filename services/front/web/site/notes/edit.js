// Editing a note: the text beside its preview, saved only over the version that was read.
import { html, useEffect, useRef, useState } from "../lib.js";
import { call } from "../api.js";
import { Action, Loaded, Title, useWork } from "../ui.js";
import { noteAt } from "./address.js";
import { draftOf, dropDraft, keepDraft } from "./drafts.js";
import { Markdown, justSaved } from "./note.js";

const PREVIEW_MS = 250;

export function Editor({ id, line = "" }) {
  const work = useWork(() => call("notes_show", { id, backlinks: 0 }), [id]);
  return html`<p><a href="#/notes">Notes</a> / <a href=${noteAt(id)}>${work.value?.title || id}</a></p><${Title}>Edit ${work.value?.title || id}<//>
    <${Loaded} work=${work}>${(note) => (note.text.includes("\uFFFD")
      ? html`<p class="busy">It has bytes that are not UTF-8, which this field would change. Edit it with a program that keeps them.</p>`
      : html`<${Fields} key=${note.hash} note=${note} line=${Number(line) || 0} />`)}<//>`;
}

const shownOf = (text) => text.replace(/\r\n?/g, "\n");

function Fields({ note, line }) {
  const draft = useRef(draftOf(note.file)).current;
  const [text, setText] = useState(draft ? draft.text : shownOf(note.text));
  // The version that the text was made from.
  const [base, setBase] = useState(draft ? draft.hash : note.hash);
  const [lost, setLost] = useState(false);
  const [conflict, setConflict] = useState(null);
  const field = useRef();
  const form = useRef();
  const isChanged = text !== shownOf(note.text);
  const preview = usePreview(note, text);

  useEffect(() => {
    if (!line) return;
    const lines = field.current.value.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    field.current.focus();
    field.current.setSelectionRange(start, start + (lines[line - 1] || "").length);
    field.current.scrollTop = Math.max(0, (line - 4) * 21);
  }, [line]);
  useEffect(() => {
    // A closed tab would lose the draft.
    const ask = (event) => event.preventDefault();
    if (isChanged) addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [isChanged]);

  const change = (next) => {
    setText(next);
    if (next === shownOf(note.text)) dropDraft(note.file);
    else setLost(!keepDraft(note.file, { text: next, hash: base }));
  };
  const write = async (hash) => {
    const content = /\r\n/.test(note.text) && !/(?<!\r)\n/.test(note.text) ? text.replace(/\n/g, "\r\n") : text;
    try {
      const done = await call("notes_write", { path: note.file, content, if_match: hash });
      dropDraft(note.file);
      justSaved(done.id || note.id, { change: done.change, notKept: done.not_kept, ...(!done.changed && { said: "It read so already." }) });
      location.hash = noteAt(done.id || note.id);
    } catch (error) {
      const now = await call("notes_show", { id: note.id, backlinks: 0 }).catch(() => null);
      if (!now || now.hash === hash) throw error;
      setConflict({ reason: error.message, now });
    }
  };
  const take = () => {
    dropDraft(note.file);
    setText(shownOf(conflict.now.text));
    setBase(conflict.now.hash);
    setConflict(null);
  };
  const keys = (event) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    form.current.querySelector("button.main").click();
  };
  return html`
    ${draft && html`<p class="busy" role="status">This is your text that was not saved.${draft.hash !== note.hash && " The note has changed since."}${" "}
      <button onClick=${() => { dropDraft(note.file); setText(shownOf(note.text)); setBase(note.hash); }}>Discard it</button></p>`}
    ${lost && html`<p class="error" role="alert">The text is too long to be kept as a draft: save it before you leave.</p>`}
    ${conflict && html`<section class="card" aria-label="Conflict"><p class="error" role="alert">Not saved: the note has changed meanwhile. ${conflict.reason}</p>
      <p>Your text is in the field below. The note reads now:</p><pre tabindex="0" aria-label="The note as it is now">${conflict.now.text}</pre>
      <div class="row"><${Action} act=${() => write(conflict.now.hash)}>Replace it with mine<//>
        <${Action} act=${take} confirm="Drop your text and take the note as it is now?">Take this one<//></div></section>`}
    <div ref=${form} onKeyDown=${keys}>
      <div class="row"><${Action} kind="main" act=${() => write(base)}>Save<//><a href=${noteAt(note.id)}>Back to the note</a>
        <span class="quiet">${isChanged ? "Not saved; kept as a draft in this tab." : "Ctrl+S saves."}</span></div>
      <div class="edit-columns"><textarea ref=${field} class="code" aria-label="Markdown" spellcheck=${false} value=${text} onInput=${(event) => change(event.target.value)}></textarea>
        <section aria-label="Preview" tabindex="0" class="preview"><${Markdown} note=${preview} /></section></div></div>`;
}

// The note with this text: its links are looked up once the text rests.
function usePreview(note, text) {
  const [shown, set] = useState(note);
  useEffect(() => {
    let current = true;
    if (text === note.text) { set(note); return; }
    const timer = setTimeout(async () => {
      const found = await call("notes_show", { id: note.id, text, backlinks: 0 }).catch(() => ({ links: note.links, start: 0 }));
      if (current) set({ ...note, ...found, text });
    }, PREVIEW_MS);
    return () => { current = false; clearTimeout(timer); };
  }, [note, text]);
  return shown;
}
