// The definitions of a mounted server, compared with those that were approved.
import { html } from "./lib.js";
import { operator } from "./api.js";
import { Action, Json, Loaded, Nothing, plural, useWork } from "./ui.js";

// What a mounted server offers now, compared with what was approved or first seen.
export function Definitions({ mount }) {
  const work = useWork(() => operator("mounts_diff", { mount }), [mount]);
  return html`<${Loaded} work=${work}>${({ changes, flags }) => html`
    ${flags.map((flag, index) => html`<p class="busy" key=${index}>${typeof flag === "string" ? flag : Object.values(flag).join(": ")}</p>`)}
    ${!changes.length ? html`<${Nothing}>Its definitions are as they were approved, or first seen.<//>` : html`
      <p>${plural(changes.length, "definition")} changed since the approval. Clients see them; read them before you approve.</p>
      <${Action} kind="main" act=${async () => { await operator("mounts_approve", { mount }); work.again(); }}>Approve<//>
      ${changes.map((each) => html`<h2 key=${each.what}>${each.what}</h2><div class="columns">
        <div>Before<${Json} value=${each.before || "(new)"} /></div><div>Now<${Json} value=${each.after || "(removed)"} /></div></div>`)}`}`}<//>`;
}
