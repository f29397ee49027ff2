// Addresses of notes, and what a filter means.
export const noteAt = (id, parameters = {}) => `#/notes/note/${encodeURIComponent(id)}${query(parameters)}`;
export const editAt = (id, parameters = {}) => `#/notes/edit/${encodeURIComponent(id)}${query(parameters)}`;
export const tagAt = (tag) => `#/notes${query({ find: `#${tag}` })}`;

function query(parameters) {
  const text = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  return text && `?${text}`;
}

// The words and the tags of a filter: `sea #animal`.
export function wanted(find) {
  const all = find.trim().split(/\s+/).filter(Boolean);
  const tags = all.filter((each) => /^#./.test(each)).map((each) => each.slice(1).toLowerCase());
  return { words: all.filter((each) => !/^#./.test(each)).map((each) => each.toLowerCase()), tags };
}

// Parameters of notes_browse for a filter.
export function browsing(find) {
  const { words, tags } = wanted(find);
  return { ...(words.length && { words: words.join(" ") }), ...(tags.length && { tag: tags[0] }) };
}
