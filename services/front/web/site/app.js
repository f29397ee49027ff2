// The frame of the page: sign-in, navigation, and the live figures for the views.
import { createContext, html, render, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./lib.js";
import { Alerts } from "./alerts.js";
import { live, session } from "./api.js";
import { notifies, useNotices, waitingIn } from "./notices.js";
import { SearchField, Views } from "./search_field.js";
import { bytes, percent, span } from "./ui.js";

export const Live = createContext({ overview: null, error: null });
export const useLive = () => useContext(Live);

// Views that have become a part of another.
const MOVED = { changes: "today", settings: "admin/settings" };

// Every file in `views` is a view. It exports `title`, `order`, and `View`, which gets `parts` and `parameters`, both
// from the address: #/NAME/PART/PART?NAME=VALUE.
async function views() {
  const names = await (await fetch("page/views.json")).json();
  const found = await Promise.all(names.map(async (name) => ({ name, ...(await import(`./views/${name}.js`)) })));
  return found.sort((one, other) => one.order - other.order);
}

function place() {
  const [path, query = ""] = location.hash.slice(2).split("?");
  const [name = "", ...parts] = path.split("/").map(decodeURIComponent);
  return { name, parts, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

function usePlace() {
  const [, set] = useState(location.hash);
  useEffect(() => {
    const changed = () => set(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  // Live figures may redraw the page between a change of the address and its event. With the address before the change,
  // that would take back the last letter typed into a field whose text is in the address.
  return useMemo(place, [location.hash]);
}

function useSession() {
  const [, set] = useState(0);
  useEffect(() => session.onChange(() => set((count) => count + 1)), []);
  return `${session.key}.${session.token}`;
}

function useOverview(identity) {
  const [state, set] = useState({ overview: null, error: null, status: 0 });
  useEffect(() => {
    let stop = () => {};
    // A hidden page asks for nothing, unless it is to tell of calls that wait.
    const follow = () => {
      stop();
      if (document.hidden && !notifies()) return;
      stop = live((news) => set((before) =>
        news.overview ? { overview: news.overview, error: null, status: 200 } : { ...before, error: news.error, status: news.status }));
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      stop();
    };
  }, [identity]);
  return state;
}

function SignIn({ wrong }) {
  const [text, set] = useState("");
  return html`<main class="signin" id="content">
    <h1>Linckia</h1>
    <p>${wrong ? html`<span class="error" role="alert">${wrong}</span>` : "This kernel requires its token."}</p>
    <p>Open the address that <code>linckia status</code> shows as <em>page</em>, or paste it here. A token alone gives a
      client's access: search and data, without the control of services.</p>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); session.signIn(text); }}>
      <input class="grow" type="password" autocomplete="off" aria-label="Address of the page, or token" placeholder="Address of the page, or token"
        value=${text} onInput=${(event) => set(event.target.value)} />
      <button class="main">Sign in</button>
    </form></main>`;
}

function Pulse({ overview, error }) {
  if (!overview) return html`<span class="pulse">${session.token && html`<button class="link" onClick=${() => session.signOut()}>Sign out</button>`}</span>`;
  const processors = overview.services.reduce((sum, each) => sum + (each.cpu || 0), overview.kernel_cpu || 0);
  return html`<span class="pulse">
    <span class="narrow-hide">up ${span(overview.uptime_s)}</span><span>${bytes(overview.total_pss_bytes)}</span><span>${percent(processors)} of a core</span>
    <span class=${error ? "bad" : "good"}>${error ? "○ no news" : "● live"}</span>
    ${session.token && html`<button class="link" onClick=${() => session.signOut()}>Sign out</button>`}</span>`;
}

function App({ all }) {
  const identity = useSession();
  const state = useOverview(identity);
  const { name, parts, parameters } = usePlace();
  const heading = useRef();
  const first = useRef(true);
  const view = all.find((each) => each.name === name);
  const waiting = waitingIn(state.overview);
  useNotices(waiting);
  useEffect(() => {
    if (view) return;
    const query = location.hash.split("?")[1];
    location.replace(`#/${MOVED[name] || all[0].name}${MOVED[name] && query ? "?" + query : ""}`);
  }, [view]);
  useEffect(() => {
    document.title = `${waiting.count ? `(${waiting.count}) ` : ""}${view ? `${view.title} – ` : ""}Linckia`;
  }, [view, waiting.count]);
  useLayoutEffect(() => {
    // A screen reader goes on at the new view; the first one is read from the top. The focus moves with the view: an
    // effect would move it a frame later, away from what a quick user has reached by then.
    if (!first.current) heading.current?.querySelector("h1")?.focus();
    first.current = false;
  }, [name]);
  if (state.status === 401)
    return html`<${SignIn} wrong=${session.token ? "This token is unknown to the kernel, has expired or was revoked." : ""} />`;
  return html`<${Live.Provider} value=${state}><${Views.Provider} value=${all}>
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); heading.current?.querySelector("h1")?.focus(); }}>To the content</a>
    <header class="top"><strong>Linckia</strong>
      <nav class="views" aria-label="Views">${all.map((each) => html`
        <a key=${each.name} href=${"#/" + each.name} aria-current=${each.name === name ? "page" : undefined}>${each.title}${each.name === "approvals" && waiting.count > 0 && html`
          <span class="count" aria-label=${`, ${waiting.count} waiting`}>${waiting.count}</span>`}</a>`)}</nav>
      <${SearchField} query=${name === "search" ? parameters.query : ""} />
      <${Pulse} ...${state} />
    </header>
    ${state.error && html`<p class="banner error" role="alert">${state.status === 403
      ? `${state.error}. Until then, this page has a client's access only.` : state.error}</p>`}
    <${Alerts} alerts=${state.overview?.alerts} />
    <main id="content" ref=${heading}>${view && html`<${view.View} key=${view.name} parts=${parts} parameters=${parameters} />`}</main>
  <//><//>`;
}

const root = document.getElementById("app");
views().then((all) => {
  root.replaceChildren();
  render(html`<${App} all=${all} />`, root);
}, (error) => { root.textContent = `The page could not be loaded: ${error.message}`; });
