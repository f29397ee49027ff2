"""Creates what a path names but the file lacks: new keys, with the mappings in between, and new items."""

import json
import re
from typing import Final

from services.yaml.check import Expected, Splice, first_right
from services.yaml.comments import comments_stop
from services.yaml.errors import NotApplicable, SyntaxFault
from services.yaml.fragment import Fragment, read_fragment
from services.yaml.layout import Style, enclosing
from services.yaml.path import Key, show_path
from services.yaml.replacement import replace_value
from services.yaml.syntax.events import CLOSING, MAPPING, SCALAR, Document, Event
from services.yaml.syntax.parser import parse
from services.yaml.tree import NodePlace, Tree

_MEANS_MORE: Final = frozenset(["yes", "no", "on", "off", "true", "false", "null"])
_TEXT: Final = re.compile(r"[^\W\d_][^\x00-\x1f\x7f-\xa0:?#,\[\]{}\"\\|<>`\u2028\u2029\ufeff\ufffe\uffff]*(?<! )")
"""Text that begins with a letter is neither a number nor a date, in YAML 1.1 and 1.2."""
_NOT_PRINTED: Final = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Line breaks of YAML 1.1, and characters that no reader accepts, beyond those that JSON escapes."""
_SAMPLE: Final = 2000  # events examined to find out how a file writes its keys


def key_source(key: Key, *, flow: bool, quoted: bool) -> str:
    """Return the source of a new key: plain if that means the same, otherwise in double quotes."""
    name = key.name
    if not quoted and (not key.quoted or is_plainly_text(name)) and _is_plain(name, flow):
        return name
    return in_quotes(name)


def is_plainly_text(value: str) -> bool:
    """True if readers of any YAML version take unquoted text for a string, in brackets as well."""
    return _TEXT.fullmatch(value) is not None and value.casefold() not in _MEANS_MORE


def in_quotes(value: str) -> str:
    """Put text in double quotes, on one line, for readers of any YAML version."""
    return _NOT_PRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


def _is_plain(name: str, flow: bool) -> bool:
    if not name or name != name.strip(" \t") or len(name) > 1000:
        return False
    try:
        events = parse(f"{{{name}: 1}}" if flow else f"{name}: 1").events
    except SyntaxFault:
        return False
    return len(events) == 6 and events[2] == (SCALAR, ":", name, None, None)


def key_event(source: str) -> Event:
    """Return the event of a key as `key_source` wrote it."""
    return parse(source).events[1]


def create(
    tree: Tree, document: Document, parent: NodePlace, keys: list[Key], fragment: Fragment, *, json_file: bool
) -> Tree:
    """Return the tree with `fragment` at `keys` under `parent`, an existing mapping or null. Raises YamlError (-32003).

    With `json_file`, new keys are quoted if there is no other key to follow.
    """
    if not tree.is_null(parent.node):
        return _insert_entry(tree, document, parent, keys, fragment, json_file)
    _, flow = enclosing(tree, parent, document)
    if flow:
        quoted = json_file or _quotes_keys(tree, document)
        source = "{" + _flow_entry(keys, fragment, quoted, ": ") + "}"
    else:
        lines = _block_entry(keys, fragment, Style(tree), 0)
        if lines is None:
            raise NotApplicable(f"the value cannot be indented to fit under {show_path([*keys])}")
        source = "\n".join(lines)
    return replace_value(tree, document, parent, read_fragment(source, document.tags))


def create_first(tree: Tree, keys: list[Key], fragment: Fragment) -> Tree:
    """Return the tree of a stream without documents after adding a document with `fragment` at `keys`."""
    style = Style(tree)
    lines = _block_entry(keys, fragment, style, 0) if keys else None
    if lines is None:
        lines = fragment.lines if fragment.is_block_collection and not keys else [fragment.head, *fragment.lines]
    size = len(tree.text)
    line_break = style.line_break(max(size - 1, 0))
    block = line_break.join(lines)
    begun = tree.text[-1:] in ("", "\r", "\n") or tree.text == "\ufeff"
    block = block + line_break if begun else line_break + block
    opened = _nested_events(keys, fragment, flow=False, quoted=False)
    if keys:
        opened = [(MAPPING, "", "", None, None), *opened, CLOSING[MAPPING]]
    events: list[Event] = [(0, "", "", None, None), *opened, (1, "", "", None, None)]
    expected = Expected(0, 0, events, added=fragment.comments)
    return first_right(tree, [[Splice(size, size, block)]], expected, "the value cannot be at the top of this file")


def _block_entry(keys: list[Key], fragment: Fragment, style: Style, column: int) -> list[str] | None:
    """Return the lines of `keys` with the fragment under the last one; the first key is at `column`."""
    lines = [
        " " * (column + number * style.unit) + key_source(key, flow=False, quoted=False) + ":"
        for number, key in enumerate(keys)
    ]
    column += (len(keys) - 1) * style.unit
    if fragment.is_block_collection:
        below = fragment.shifted(column + (style.sequence_step if fragment.tree.is_sequence(1) else style.unit))
        head = fragment.head
    elif fragment.is_block_scalar:
        below = fragment.shifted(column + style.unit)
        head = fragment.block_header(style.unit)
    else:
        head, *below = fragment.inline_lines(column + style.unit)
    if below is None:
        return None
    if head:
        lines[-1] += " " + head
    return lines + below


def _flow_entry(keys: list[Key], fragment: Fragment, quoted: bool, colon: str) -> str:
    first, *rest = [key_source(key, flow=True, quoted=quoted) + colon for key in keys]
    return first + "".join("{" + key for key in rest) + fragment.head + "}" * len(rest)


def _quotes_keys(tree: Tree, document: Document) -> bool:
    """True if all keys of a document's flow mappings are quoted, as in JSON; False if there are no keys."""
    events = tree.stream.events
    nodes = range(document.event + 1, min(document.close, document.event + _SAMPLE))
    flow = (node for node in nodes if events[node][0] == MAPPING and tree.is_flow(node))
    styles = {events[child.key][1] for node in flow for child in tree.children(node)}
    return styles == {'"'}


def _nested_events(keys: list[Key], fragment: Fragment, *, flow: bool, quoted: bool) -> list[Event]:
    """Return the events of an entry: each key but the first inside a mapping of its own."""
    opening: Event = (MAPPING, "{}" if flow else "", "", None, None)
    events: list[Event] = []
    for key in keys:
        events += (opening, key_event(key_source(key, flow=flow, quoted=quoted)))
    return [*events[1:], *fragment.events, *[CLOSING[MAPPING]] * (len(keys) - 1)]


def _insert_entry(
    tree: Tree, document: Document, parent: NodePlace, keys: list[Key], fragment: Fragment, json_file: bool
) -> Tree:
    close = tree.stream.closes[parent.node]
    flow = tree.is_flow(parent.node)
    quoted = False
    if flow:
        fragment.require_inline()
        children = tree.children(parent.node)
        if children:
            quoted = all(tree.stream.events[child.key][1] == '"' for child in children)
        else:
            quoted = json_file or _quotes_keys(tree, document)
        candidates = insertions_flow(tree, parent.node, _flow_entry(keys, fragment, quoted, _colon(tree, parent.node)))
    else:
        lines = _block_entry(keys, fragment, Style(tree), tree.column(parent.node))
        candidates = [] if lines is None else insertions_block(tree, parent.node, lines)
    events = _nested_events(keys, fragment, flow=flow, quoted=quoted)
    return first_right(
        tree,
        candidates,
        Expected(close, close, events, added=fragment.comments),
        f"adding the key {keys[0].name!r} with this value would change something else in the file",
    )


def _colon(tree: Tree, mapping: int) -> str:
    """Return the colon as the mapping writes it: without a space in dense JSON."""
    text = tree.text
    for child in tree.children(mapping):
        start = tree.stream.starts[child.node]
        if start > tree.stream.stops[child.key] and not tree.is_empty(child.node):
            return ":" if text[start - 1] == ":" else ": "
    at = tree.stream.bodies[mapping]
    before = text[max(at - 4000, 0) : at]
    return ":" if '":' in before and '": ' not in before else ": "


def insertions_block(tree: Tree, collection: int, lines: list[str]) -> list[list[Splice]]:
    """Insert lines after the last entry of a block collection and its comments, before blank lines and other
    comments."""
    stop = tree.stream.stops[collection]
    line_break = Style(tree).line_break(tree.stream.bodies[collection])
    block = line_break.join(lines)
    if stop > tree.stream.bodies[collection] and tree.text[stop - 1] in "\r\n":
        # The entry ends with kept blank lines, which are content: the new line begins right after them.
        return [[Splice(stop, stop, block + line_break)]]
    at = comments_stop(tree, stop, tree.column(collection))
    return [[Splice(at, at, line_break + block)]]


def insertions_flow(tree: Tree, collection: int, entry: str) -> list[list[Splice]]:
    """Insert a new last entry in a flow collection, on a line of its own if the other entries have one each."""
    text = tree.text
    stream = tree.stream
    children = tree.children(collection)
    close = stream.stops[collection] - 1
    if not children:
        opening = stream.bodies[collection] + 1
        inner = text[opening:close]
        if inner and not inner.strip(" \t"):
            return [[Splice(opening, close, f"{inner[0]}{entry}{inner[0]}")], [Splice(opening, opening, entry)]]
        return [[Splice(opening, opening, entry)], [Splice(close, close, entry)]]
    last = children[-1]
    at = stream.stops[last.node]
    first = stream.starts[last.first]
    line = tree.line_start(first)
    out: list[list[Splice]] = []
    if not text[line:first].strip(" \t") and line > stream.bodies[collection]:
        below = Style(tree).line_break(first) + text[line:first] + entry
        line_stop = tree.line_stop(at)
        if close > line_stop:
            after = comments_stop(tree, at, first - line)
            if text[at:line_stop].lstrip(" \t").startswith(","):
                out.append([Splice(after, after, below + ",")])
            else:
                out.append([Splice(at, at, ","), Splice(after, after, below)])
        out.append([Splice(at, at, "," + below)])
    separator = ", "
    if len(children) > 1:
        before = text[stream.stops[children[-2].node] : first]
        separator = before if before in (",", ",\t") else ", "
    elif ":" in entry and _colon(tree, collection) == ":" and last.key >= 0:
        separator = ","
    out.append([Splice(at, at, separator + entry)])
    if separator == ",":
        out.append([Splice(at, at, ", " + entry)])
    return out
