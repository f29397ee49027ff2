"use strict";
const POLL_MS = 2000;
const $ = (id) => document.getElementById(id);
const stored = (name) => sessionStorage.getItem(name);

// Key and token come after the # of the address, which browsers never send; remove them from the address bar at once.
if (location.hash.length > 1) {
  const [key, token] = location.hash.slice(1).split(".");
  sessionStorage.setItem("key", decodeURIComponent(key));
  if (token) sessionStorage.setItem("token", decodeURIComponent(token));
  history.replaceState(null, "", location.pathname);
}

const headers = (more) => stored("token") ? { ...more, "Authorization": "Bearer " + stored("token") } : more;

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
  const notes = [];
  if (service.reason) notes.push(service.reason);
  if (service.retry_in_s != null) notes.push("next try in " + span(service.retry_in_s));
  if (service.last_death) notes.push("last death: " + service.last_death);
  for (const [work, backlog] of Object.entries(service.backlogs))
    notes.push(work + ": " + backlog.done.toLocaleString("en") + " of " + backlog.total.toLocaleString("en")
      + (backlog.per_s == null ? "" : ", " + Math.round(backlog.per_s) + "/s, " + span(backlog.left_s) + " left"));
  return notes.join("; ");
}

async function restart(name, button) {
  button.disabled = true;
  $("trouble").textContent = "";
  try {
    const answer = await fetch("/services/" + encodeURIComponent(name) + "/restart",
      { method: "POST", headers: headers({ "Linckia-Key": stored("key") || "" }) });
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
    if (stored("key")) last.append(buttonFor(service.name));
  }
  // Replacing the rows takes the focus from a button; give it back.
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
$("no-key").hidden = Boolean(stored("key"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
setInterval(() => { if (!document.hidden) look(); }, POLL_MS);
look();
