// Notes: folders, lists, a note, its editing, the graph of all, and what may need care.
import { html } from "../lib.js";
import { Tabs, Title } from "../ui.js";
import { Editor } from "../notes/edit.js";
import { Whole } from "../notes/graph.js";
import { Browser } from "../notes/list.js";
import { Broken, Duplicates, Gaps, Orphans } from "../notes/loose.js";
import { Note } from "../notes/note.js";

export const title = "Notes";
export const order = 15;

const PARTS = {
  "": ["Notes", Browser], graph: ["Graph", Whole], orphans: ["Not linked to", Orphans], broken: ["Broken links", Broken],
  duplicates: ["Duplicates", Duplicates], gaps: ["Missing links", Gaps],
};

const address = (part) => (part ? `#/notes/${part}` : "#/notes");

export function View({ parts: [part = "", id = ""], parameters }) {
  if (part === "note") return html`<${Note} key=${id} id=${id} heading=${parameters.heading} depth=${Number(parameters.depth) || 1} />`;
  if (part === "edit") return html`<${Editor} key=${id} id=${id} line=${parameters.line} />`;
  const known = PARTS[part] ? part : "";
  const [, Shown] = PARTS[known];
  return html`<${Title}>Notes<//>
    <${Tabs} label="Parts of the notes" current=${address(known)} tabs=${Object.entries(PARTS).map(([name, [named]]) => [address(name), named])} />
    <${Shown} key=${known} ...${parameters} />`;
}
