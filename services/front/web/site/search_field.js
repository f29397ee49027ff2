// The field in the header that searches everything, and the keys that work in every view.
import { createContext, html, useContext, useEffect, useRef, useState } from "./lib.js";
import { go } from "./ui.js";

// The views, {name, title}, which are found by their titles.
export const Views = createContext([]);
export const useViews = () => useContext(Views);

const KEYS = [
  ["/", "Search everything"],
  ["?", "This list"],
  ["↓ ↑", "Next and previous hit of a search; choose in a picture"],
  ["Enter", "Open what is chosen"],
  ["Tab", "Go on to the next link, button or field"],
  ["Escape", "Close a dialog"],
];

const TYPED = new Set(["text", "search", "password", "number", "date", "datetime-local", "email", "url", "tel", "time", "month", "week"]);

// Whether keys are text here.
export function isTyping(target) {
  if (target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName)) return true;
  return target.tagName === "INPUT" && TYPED.has(target.type);
}

function useKeys(actions) {
  useEffect(() => {
    const pressed = (event) => {
      const act = actions[event.key];
      if (!act || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
}

// `query` is the one whose hits are shown.
export function SearchField({ query = "" }) {
  const [text, set] = useState(query);
  const field = useRef();
  const dialog = useRef();
  useEffect(() => set(query), [query]);
  useKeys({ "/": () => { field.current.focus(); field.current.select(); }, "?": () => dialog.current.showModal() });
  const submit = (event) => {
    event.preventDefault();
    const asked = text.trim();
    if (asked) go("/search", { query: asked });
  };
  return html`<form class="everything" role="search" aria-label="Everything" onSubmit=${submit}>
      <input ref=${field} id="search-everything" type="search" aria-label="Search everything" placeholder="Search everything  ( / )" aria-keyshortcuts="/"
        autocomplete="off" enterkeyhint="search" maxlength="2000" value=${text} onInput=${(event) => set(event.target.value)} />
      <button type="button" aria-label="Keys" aria-keyshortcuts="?" onClick=${() => dialog.current.showModal()}>?</button></form>
    <dialog ref=${dialog} aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2>
      <dl class="facts">${KEYS.map(([key, what]) => html`<div class="pair" key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
      <form method="dialog" class="row"><button autofocus>Close</button></form></dialog>`;
}
