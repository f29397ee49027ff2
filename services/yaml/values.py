"""Reads and sets the value at a path in a parsed file."""

from services.yaml.create import create, create_first
from services.yaml.errors import Code, NotApplicable, SyntaxFault, YamlError, line_and_column
from services.yaml.fragment import Fragment, looks_like_entries, read_fragment, read_pair
from services.yaml.layout import find_slot
from services.yaml.path import Index, Key, Step, parse_path, show_path
from services.yaml.replacement import replace_value
from services.yaml.syntax.events import ALIAS, MAPPING, Document
from services.yaml.syntax.parser import parse
from services.yaml.syntax.tokens import BLOCK_HEADER, DEFAULT_TAGS
from services.yaml.tree import NodePlace, PathNotFound, Tree


def read_tree(text: str) -> Tree:
    """Parse a file's text, whole. Raises YamlError (-32001) with line and column."""
    try:
        tree = Tree(parse(text, lenient_closers=True))
        tree.alias_targets()
    except SyntaxFault as fault:
        line, column = line_and_column(text, fault.offset)
        raise YamlError(Code.PARSE, f"not valid YAML 1.2 at line {line}, column {column}: {fault.message}") from None
    return tree


def pick_document(tree: Tree, number: int, code: Code) -> Document | None:
    """Return a document by its index, counted from 0; None if the stream is empty and the first one is requested."""
    documents = tree.stream.documents
    if 0 <= number < len(documents):
        return documents[number]
    if number == 0:
        return None
    raise YamlError(code, f"no document {number}: the file has {len(documents)}, counted from 0")


def locate(tree: Tree, path: str, document: int, code: Code) -> tuple[Document, NodePlace]:
    """Return the existing node at a path. Raises YamlError with `code`."""
    steps = parse_path(path, code)
    found = pick_document(tree, document, code)
    if found is None:
        raise YamlError(code, f"{path!r} does not exist: the file has no content")
    try:
        return found, tree.find(found, steps)
    except PathNotFound as fault:
        raise YamlError(code, f"{path!r} does not exist: {fault.reason}") from None


def get_at(tree: Tree, path: str, document: int = 0) -> str:
    """Return the source of the node at a path. Raises YamlError (-32002)."""
    _, place = locate(tree, path, document, Code.NOT_FOUND)
    return tree.source(place.node)


def set_at(tree: Tree, path: str, value: str, document: int = 0, *, json_file: bool = False) -> Tree:
    """Return the tree after setting the value at a path, or the same tree if it already has that source. Raises
    YamlError (-32003).

    `json_file` means that the file is JSON by its name, so new keys are quoted even if there are no other keys.
    """
    steps = parse_path(path, Code.NOT_APPLICABLE)
    found = pick_document(tree, document, Code.NOT_APPLICABLE)
    if found is None:
        return create_first(tree, _keys(steps, path), read_fragment(value, DEFAULT_TAGS))
    try:
        place = tree.find(found, steps)
    except PathNotFound as fault:
        if not fault.creatable:
            raise NotApplicable(f"cannot set {path!r}: {fault.reason}") from None
        keys = _keys(fault.rest, path)
        _refuse_hiding(tree, fault.parent, keys, path)
        return create(tree, found, fault.parent, keys, read_fragment(value, found.tags), json_file=json_file)
    if tree.source(place.node) == value:
        return tree
    return replace_value(tree, found, place, _read_value(tree, found, place, value))


def _keys(steps: list[Step], path: str) -> list[Key]:
    keys: list[Key] = []
    for step in steps:
        if isinstance(step, Index):
            raise NotApplicable(f"cannot set {path!r}: [{step.number}] does not exist; use append to add items")
        keys.append(step)
    return keys


def _read_value(tree: Tree, document: Document, place: NodePlace, value: str) -> Fragment:
    """Parse a replacement value, as it is or as if it began at the column of the node that it replaces.

    When reading a collection that begins after `- `, its further lines are indented deeper than its first, and that
    text must be accepted back. If both readings are possible and differ, the value is ambiguous.
    """
    body = tree.stream.bodies[place.node]
    if tree.stream.events[place.node][1] == "{}" and tree.text[body] != "{":
        return read_pair(value, document.tags) if value[:1] != "{" else read_fragment(value, document.tags)
    slot = find_slot(tree, place, document)
    if slot.column > 0 and tree.is_block_scalar(place.node) and _digit(tree.text, body) and _digit(value, 0):
        raise NotApplicable(
            "the indentation digit of this block scalar counts from the left margin in the value but from the "
            "parent in the file, so the value is ambiguous: leave the digit out, or use a quoted scalar"
        )
    within = tree.is_block_collection(place.node) and slot.on_line and place.parent >= 0
    column = tree.column(place.node) if within else 0
    if not column or "\n" not in value.strip("\r\n") or value[:1] in (" ", "\n", "\r"):
        return read_fragment(value, document.tags)
    try:
        shifted = read_fragment(value, document.tags, column)
    except YamlError:
        return read_fragment(value, document.tags)
    try:
        plain = read_fragment(value, document.tags)
    except YamlError:
        return shifted
    if looks_like_entries(plain):
        return shifted
    if plain.events != shifted.events:
        raise NotApplicable(
            "the value is ambiguous, since its first line is indented less than the others: indent all its "
            "lines from the same column"
        )
    return plain


def _digit(text: str, at: int) -> bool:
    """True if the block scalar header at an offset has an indentation indicator."""
    found = BLOCK_HEADER.match(text, at)
    return found is not None and bool(found.group(1) or found.group(4))


def _refuse_hiding(tree: Tree, parent: NodePlace, keys: list[Key], path: str) -> None:
    """Refuse a path through a key that is only merged in: it would hide all the merged value's other keys."""
    if len(keys) < 2 or tree.stream.events[parent.node][0] != MAPPING:
        return
    for mapping in merged(tree, parent.node, set()):
        child = tree.keys(mapping).get(keys[0].name)
        if child is not None:
            here = show_path([keys[0]])
            raise NotApplicable(
                f"cannot set {path!r}: {here} is only merged in by <<, and a new {here} here would hide its other keys"
                ": set all of it, or use the path of its anchor"
            )


def merged(tree: Tree, mapping: int, seen: set[int]) -> list[int]:
    """Return the mappings that a mapping merges, in order of precedence."""
    if mapping in seen:
        return []
    seen.add(mapping)
    place = tree.keys(mapping).get("<<")
    if place is None:
        return []
    events = tree.stream.events
    sources = [place.node] if events[place.node][1] != "[]" else [child.node for child in tree.children(place.node)]
    out: list[int] = []
    for source in sources:
        target = tree.alias_targets().get(source, source)
        if events[target][0] == MAPPING and events[source][0] in (ALIAS, MAPPING):
            out += [target, *merged(tree, target, seen)]
    return out
