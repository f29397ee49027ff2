"""The operator's page: `GET /`, and its one button; its script shows `/status`, the route of `kernel_status`.

The page is one document that holds no data and loads nothing from anywhere.  A client that may use the rest of HTTP
may see it, and it gets the token and the key of this run of the kernel from the address that the command line prints
(`linckia status`): from behind the #, so that neither is sent, logged, or seen by others of the machine.  A restart
takes the key as well, and must come from the page itself and no other site.
"""

from __future__ import annotations

import base64
import hashlib

from starlette import routing
from starlette.requests import Request
from starlette.responses import Response

from proto.dispatch import Dispatcher
from proto.errors import Forbidden, Kind, LinckiaError
from proto.front import SERVICE
from proto.operation import Route, operation_of
from proto.ops.kernel import KernelPageRestart
from services.front.web.routes import failed, json_response

KEY_HEADER = "linckia-key"

_RESTART = Route("POST", "/services/{name}/restart", statuses={Kind.INVALID_PARAMS: 404})

STYLE = """
:root { color-scheme: light dark; --line: #8886; --quiet: #888; --good: #2a8a3e; --bad: #c62828; --busy: #b26a00; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0 0 .3rem; }
p { margin: .2rem 0; }
.quiet { color: var(--quiet); }
.wide { overflow-x: auto; margin-top: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; }
.ready { color: var(--good); }
.failed, .backoff, #trouble { color: var(--bad); }
.starting, .draining, .waiting { color: var(--busy); }
button, input { font: inherit; padding: .15rem .6rem; }
"""

SCRIPT = """
"use strict";
const POLL_MS = 2000;
const $ = (id) => document.getElementById(id);
const kept = (name) => sessionStorage.getItem(name);

// Key and token come behind the # of the address, which is never sent anywhere, and are taken out of sight at once.
if (location.hash.length > 1) {
  const [key, token] = location.hash.slice(1).split(".");
  sessionStorage.setItem("key", decodeURIComponent(key));
  if (token) sessionStorage.setItem("token", decodeURIComponent(token));
  history.replaceState(null, "", location.pathname);
}

const headers = (more) => kept("token") ? { ...more, "Authorization": "Bearer " + kept("token") } : more;

function bytes(count) {
  if (count == null) return "";
  return count >= 2 ** 30 ? (count / 2 ** 30).toFixed(1) + " GiB" : Math.round(count / 2 ** 20) + " MiB";
}

function span(seconds) {
  if (seconds == null) return "";
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= 2 * length) return Math.round(seconds / length) + " " + unit;
  return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
}

function cell(row, text, kind = "") {
  const made = row.insertCell();
  made.textContent = text == null ? "" : String(text);
  made.className = kind;
  return made;
}

function note(service) {
  const said = [];
  if (service.reason) said.push(service.reason);
  if (service.retry_in_s != null) said.push("next try in " + span(service.retry_in_s));
  if (service.last_death) said.push("last death: " + service.last_death);
  for (const [of, held] of Object.entries(service.backlogs))
    said.push(of + ": " + held.done.toLocaleString("en") + " of " + held.total.toLocaleString("en")
      + (held.per_s == null ? "" : ", " + Math.round(held.per_s) + "/s, " + span(held.left_s) + " left"));
  return said.join("; ");
}

async function restart(name, button) {
  button.disabled = true;
  $("trouble").textContent = "";
  try {
    const answer = await fetch("/services/" + encodeURIComponent(name) + "/restart",
      { method: "POST", headers: headers({ "Linckia-Key": kept("key") || "" }) });
    if (!answer.ok) $("trouble").textContent = name + ": " + (await answer.json()).error;
  } catch (error) {
    $("trouble").textContent = name + ": " + error.message;
  }
  button.disabled = false;
  look();
}

const buttons = new Map();

function buttonFor(name) {
  if (!buttons.has(name)) {
    const made = document.createElement("button");
    made.textContent = "Restart";
    made.setAttribute("aria-label", "Restart " + name);
    made.addEventListener("click", () => restart(name, made));
    buttons.set(name, made);
  }
  return buttons.get(name);
}

function show(status) {
  $("about").textContent = "version " + status.version + ", process " + status.pid + ", up " + span(status.uptime_s)
    + ", " + bytes(status.pss_bytes ?? status.rss_bytes) + ", clients on stdio: " + status.clients;
  $("data").textContent = status.data_dir;
  const shown = status.roots.map((root) => status.read_only_roots.includes(root) ? root + " (read only)" : root);
  $("roots").textContent = shown.join(", ") || "none: operations on files are refused";
  const body = document.createElement("tbody");
  for (const service of status.services) {
    const row = body.insertRow();
    cell(row, service.name);
    cell(row, service.state, service.state);
    cell(row, service.pid, "number");
    cell(row, service.generation, "number");
    cell(row, span(service.uptime_s), "number");
    cell(row, service.restarts, "number");
    cell(row, Object.entries(service.deaths).map(([cause, count]) => cause + " " + count).join(", "));
    cell(row, service.in_flight + (service.queued ? " + " + service.queued + " waiting" : ""), "number");
    cell(row, bytes(service.pss_bytes ?? service.rss_bytes), "number");
    cell(row, note(service), "quiet");
    const last = cell(row, "");
    if (kept("key")) last.append(buttonFor(service.name));
  }
  // Replaced around the button in use, which would lose the focus.
  const focused = document.activeElement;
  $("services").tBodies[0].replaceWith(body);
  if (focused && focused.isConnected) focused.focus();
}

async function look() {
  try {
    const answer = await fetch("/status", { headers: headers({}), cache: "no-store" });
    $("sign-in").hidden = answer.status !== 401;
    if (answer.ok) {
      show(await answer.json());
      $("when").textContent = "as of " + new Date().toLocaleTimeString();
      $("when").className = "quiet";
    } else if (answer.status !== 401) {
      $("when").textContent = "the kernel answered " + answer.status;
    }
  } catch {
    $("when").textContent = "the kernel does not answer";
    $("when").className = "failed";
  }
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  look();
});
$("no-key").hidden = Boolean(kept("key"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
setInterval(() => { if (!document.hidden) look(); }, POLL_MS);
look();
"""

_COLUMNS = (
    "Service", "State", "Process", "Generation", "Up", "Restarts", "Deaths by cause", "In flight", "Memory", "", "",
)  # fmt: skip

DOCUMENT = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Linckia</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
<h1>Linckia</h1>
<p id="about"></p>
<p class="quiet">Data: <span id="data"></span>. Roots: <span id="roots"></span>.</p>
<p id="when" class="quiet" role="status">asking the kernel…</p>
<form id="sign-in" hidden>
<label>This kernel asks for its token: <input id="token" type="password" autocomplete="off"></label>
<button>Sign in</button>
</form>
<p id="trouble" role="alert"></p>
<div class="wide"><table id="services">
<thead><tr>{"".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)}</tr></thead>
<tbody></tbody>
</table></div>
<p id="no-key" class="quiet">To restart services from here, open the address that <code>linckia status</code> gives.</p>
<script>{SCRIPT}</script>
</html>
"""


def _source(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # This script and this style run; injected ones do not.
    "content-security-policy": f"default-src 'none'; style-src {_source(STYLE)}; script-src {_source(SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def routes(dispatcher: Dispatcher) -> list[routing.BaseRoute]:
    """The page's routes."""

    async def page(request: Request) -> Response:
        return Response(DOCUMENT, media_type="text/html; charset=utf-8", headers=_HEADERS)

    async def restart(request: Request) -> Response:
        try:
            if (refusal := _refusal(request)) is not None:
                raise Forbidden(refusal)
            key = request.headers.get(KEY_HEADER, "")
            params = KernelPageRestart(service=request.path_params["name"], key=key)
            return json_response(await dispatcher.call(operation_of(KernelPageRestart), params, caller=SERVICE))
        except LinckiaError as error:
            return failed(_RESTART, error)

    return [
        routing.Route("/", page, methods=["GET"]),
        routing.Route(_RESTART.path, restart, methods=[_RESTART.method]),
    ]


def _refusal(request: Request) -> str | None:
    """Why the request may change nothing; None where it may."""
    origin = request.headers.get("origin", "").partition("://")[2]
    # Not even of another server of this machine, whose pages may ask for all else.
    own = bool(origin) and origin == request.headers.get("host")
    if not own or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "a restart must come from the operator's page itself"
    return None
