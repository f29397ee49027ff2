// What the operator should see to, below the navigation. A dismissed alert stays away until it ends and begins again.
import { html, useState } from "./lib.js";
import { Time } from "./ui.js";

const STORED = "linckia-dismissed";
const keyOf = ({ id, since, text }) => `${id} ${since} ${text}`;

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(STORED) || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

const place = ({ kind, subject }) => (kind === "backup" ? "#/admin/backups" : kind === "disk" ? "#/disk" : `#/system/${encodeURIComponent(subject)}`);

export function Alerts({ alerts = [] }) {
  const [dismissed, setDismissed] = useState(stored);
  const shown = alerts.filter((each) => !dismissed.includes(keyOf(each)));
  function dismiss(alert) {
    const known = new Set(alerts.map(keyOf));
    // Those that have ended are forgotten.
    const kept = [...dismissed.filter((each) => known.has(each)), keyOf(alert)];
    localStorage.setItem(STORED, JSON.stringify(kept));
    setDismissed(kept);
  }
  if (!shown.length) return null;
  return html`<section class="banner" aria-label="Alerts"><div role="alert"><ul class="plain">${shown.map((each) => html`
    <li class="row" key=${each.id}><span class="grow"><b class="bad">Alert</b> <a class="break" href=${place(each)}>${each.text}</a>${" "}
      <span class="quiet">since <${Time} at=${each.since} /></span></span>
      <button aria-label=${`Dismiss: ${each.text}`} onClick=${() => dismiss(each)}>Dismiss</button></li>`)}</ul></div></section>`;
}
