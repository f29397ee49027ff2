// Calls that wait for an approval: how many, as the live figures say, and notifications while the page is hidden.
import { html, useEffect, useRef, useState } from "./lib.js";

const STORED = "linckia-notify";

// {count, latest}: `latest` is the id of the call that came last.
export function waitingIn(overview) {
  const text = overview?.services.find((each) => each.service === "approvals")?.info?.waiting || "";
  const found = /^(\d+) calls, the latest (\w*)/.exec(text);
  return { count: found ? Number(found[1]) : 0, latest: found ? found[2] : "" };
}

const isAllowed = () => "Notification" in window && Notification.permission === "granted";
export const notifies = () => isAllowed() && localStorage.getItem(STORED) === "yes";

// Tells of a call that begins to wait while nobody sees the page.
export function useNotices({ count, latest }) {
  const before = useRef("");
  useEffect(() => {
    if (latest && latest !== before.current && document.hidden && notifies()) {
      const said = new Notification(count === 1 ? "A call waits for your approval" : `${count} calls wait for your approval`, { tag: "linckia-approvals" });
      said.onclick = () => { window.focus(); location.hash = "/approvals"; said.close(); };
    }
    before.current = latest;
  }, [latest]);
}

// Asks the browser for permission, only when it is pressed.
export function NoticesButton() {
  const [on, set] = useState(notifies());
  const [said, say] = useState("");
  if (!("Notification" in window)) return null;
  async function toggle() {
    const wanted = !on && (await Notification.requestPermission()) === "granted";
    localStorage.setItem(STORED, wanted ? "yes" : "no");
    set(wanted);
    say(!on && !wanted ? "The browser does not allow it: change that in its settings of this page." : "");
  }
  return html`<button aria-pressed=${String(on)} onClick=${toggle}>Notify me when a call waits and this page is hidden</button>
    ${said && html`${" "}<span class="error" role="alert">${said}</span>`}`;
}
