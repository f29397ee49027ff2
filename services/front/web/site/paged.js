// Lists that are loaded page by page.
import { html, useEffect, useState } from "./lib.js";
import { Failure, number, useWork } from "./ui.js";

// `load` returns {items, next, …} for a place, at first undefined; `next` is the place of the next page, if there is one. The
// value has the items of all pages so far, and what else the first page had.
export function usePages(load, inputs) {
  const first = useWork(() => load(), inputs);
  const [later, set] = useState({ pages: [] });
  useEffect(() => set({ pages: [] }), [first.value]);
  const at = later.pages.at(-1) || first.value;
  const of = first.value;
  async function more() {
    set((before) => ({ ...before, busy: true, error: null }));
    try {
      const page = await load(at.next);
      // Meanwhile the list may have begun anew.
      set((before) => (of === first.value && before.busy ? { pages: [...before.pages, page] } : before));
    } catch (error) {
      set((before) => ({ ...before, busy: false, error }));
    }
  }
  const items = first.value && [...first.value.items, ...later.pages.flatMap((each) => each.items)];
  return { ...first, value: first.value && { ...first.value, items }, next: at?.next, more, loading: later.busy, failure: later.error };
}

// The button below a list: how much is shown, and more of it.
export function More({ pages, total }) {
  if (pages.next == null || !pages.value) return "";
  return html`<p class="row">${total != null && html`<span class="quiet" role="status">${number(pages.value.items.length)} of ${number(total)} are shown.</span>`}
    <button disabled=${pages.loading} onClick=${pages.more}>More</button>
    ${pages.failure && html`<${Failure} error=${pages.failure} />`}</p>`;
}
