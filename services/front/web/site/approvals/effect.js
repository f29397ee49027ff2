// What a call that waits would change, by its own dry run or computed from its parameters.
import { CallError, file, operator, preview } from "../api.js";
import { unified } from "../diff.js";

const DRY = new Set(["files_edit", "files_rename", "files_move", "files_copy", "folders_create", "files_delete", "trash_restore", "changes_undo",
  "notes_edit", "notes_rename", "yaml_set", "yaml_delete", "yaml_append", "yaml_rename", "yaml_set_comments", "yaml_edit", "yaml_merge"]);
const WHOLE = new Set(["files_write", "notes_write"]);
const MOST_BYTES = 4_000_000;

// The file that the call is about; "" if it is about several, or none.
export const fileOf = (parameters) => [parameters?.path, parameters?.file, parameters?.file_path].find((each) => typeof each === "string" && each.startsWith("/")) || "";

// Returns {parameters, diff, rows, notes}: all parameters, or none if they are not kept; a unified diff; or what would become
// of each item.
export async function effectOf(id, roots) {
  const { operation, parameters, why } = await operator("approval_show", { id });
  const found = { operation, parameters, notes: why ? [`Its parameters cannot be shown whole: ${why}.`] : [] };
  if (!parameters) return found;
  try {
    if (DRY.has(operation)) return { ...found, ...(await dryRun(operation, parameters, found.notes)) };
    if (WHOLE.has(operation)) return { ...found, ...(await written(parameters, roots, found.notes)) };
  } catch (error) {
    if (!(error instanceof CallError) || !error.status) throw error;
    return { ...found, notes: [...found.notes, `As things are now, it would fail: ${error.message}`] };
  }
  return found;
}

async function dryRun(operation, parameters, notes) {
  const asked = { ...parameters };
  delete asked.dryRun;
  const done = await preview(operation, asked);
  const said = parameters.dry_run || parameters.dryRun ? [...notes, "The call itself changes nothing: it only reports."] : notes;
  if (typeof done.diff === "string") return { diff: done.diff, notes: done.diff ? said : [...said, "It would change nothing."] };
  const rows = (done.results || []).map((each) => ({ path: each.from || each.path || each.source || "", to: each.to || each.target || "",
    status: each.error || each.reason || each.status || "" }));
  return { rows, notes: rows.length ? said : [...said, done.summary || "It would change nothing that can be shown."] };
}

// The text of a file, or null if there is none.
async function textOf(path) {
  try {
    const found = await file(path);
    if (found.size > MOST_BYTES) throw new CallError(`${path} is too large to be compared`, 400);
    return new TextDecoder("utf-8", { fatal: true }).decode(await found.arrayBuffer());
  } catch (error) {
    if (error.status === 404) return null;
    if (error instanceof TypeError) throw new CallError(`${path} is not UTF-8 text, so it cannot be compared`, 400);
    throw error;
  }
}

async function written(parameters, roots, notes) {
  const relative = !parameters.path.startsWith("/");
  if (relative && roots?.length !== 1) return { notes: [...notes, "The path is relative, so the file cannot be compared."] };
  const path = relative ? `${roots[0]}/${parameters.path}` : parameters.path;
  const before = await textOf(path);
  const said = [...notes];
  if (before === null) said.push("It would make a new file.");
  else if (!parameters.overwrite && !parameters.if_match) said.push("The file exists, and the call neither overwrites it nor says which version it replaces: as things are now, it would fail.");
  if (parameters.front_matter && Object.keys(parameters.front_matter).length) said.push("Its front matter, which it gives as data, would be written above; see all parameters.");
  const diff = unified(before ?? "", parameters.content ?? "", path);
  return { diff, notes: diff ? said : [...said, "The file has this content already."] };
}

// What must stay the same between reading and approving.
export const signature = ({ parameters, diff, rows, notes }) => JSON.stringify([parameters, diff, rows, notes]);
