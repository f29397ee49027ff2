// Text that was not saved yet, by the path of its note. It lasts as long as the tab.
const place = (file) => `linckia-draft:${file}`;

export function draftOf(file) {
  try {
    return JSON.parse(sessionStorage.getItem(place(file)));
  } catch {
    return null;
  }
}

// Returns whether it could be kept.
export function keepDraft(file, draft) {
  try {
    sessionStorage.setItem(place(file), JSON.stringify(draft));
    return true;
  } catch {
    return false;
  }
}

export function dropDraft(file) {
  sessionStorage.removeItem(place(file));
}
