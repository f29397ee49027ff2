"""Creating what a path names and the file does not have yet: new keys, with the mappings between, and new items."""

import json
import re
from typing import Final

from services.yaml.check.edits import Expected, Splice, check
from services.yaml.edit.fragment import Fragment, read_fragment
from services.yaml.edit.replacement import replace_value
from services.yaml.edit.slot import enclosing, is_sequence
from services.yaml.edit.style import Style
from services.yaml.errors import Code, SyntaxFault, YamlError
from services.yaml.path import Key, show_path
from services.yaml.syntax.events import CLOSING, MAPPING, SCALAR, Document, Event
from services.yaml.syntax.parser import parse
from services.yaml.syntax.tokens import BREAK
from services.yaml.tree import Place, Tree

_SAMPLE: Final = 2000  # events looked at to find out how a file writes its keys

_NOT_A_STRING: Final = re.compile(
    r"~|null|Null|NULL|true|True|TRUE|false|False|FALSE|[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
    r"|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|<<"
)


def key_source(key: Key, *, flow: bool, quoted: bool) -> str:
    """How a new key is written: plain where that means the same, else in double quotes."""
    name = key.name
    if not quoted and not (key.quoted and _NOT_A_STRING.fullmatch(name)) and _is_plain(name, flow):
        return name
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\x7f")


def _is_plain(name: str, flow: bool) -> bool:
    if not name or name != name.strip(" \t") or len(name) > 1000:
        return False
    text = f"{{{name}: 1}}" if flow else f"{name}: 1"
    try:
        events = parse(text).events
    except SyntaxFault:
        return False
    return len(events) == 6 and events[2] == (SCALAR, ":", name, None, None)


def key_event(source: str) -> Event:
    """The event of a key as `key_source` wrote it."""
    return parse(source).events[1]


def create(
    tree: Tree, document: Document, parent: Place, keys: list[Key], fragment: Fragment, *, json_file: bool
) -> Tree:
    """The tree with `fragment` at `keys` under `parent`, an existing mapping or null. Raises YamlError (-32003).

    `json_file` says that new keys are quoted where no key shows what the file does.
    """
    if not tree.is_null(parent.node):
        return _insert_entry(tree, document, parent, keys, fragment, json_file)
    style = Style(tree)
    _, flow = enclosing(tree, parent, document)
    if flow:
        quoted = quotes_keys(tree, document) or json_file
        text = _flow_entry(keys, fragment, quoted, ": ")
        return replace_value(tree, document, parent, read_fragment("{" + text + "}", document.tags))
    lines = _block_entry(keys, fragment, style, 0, quoted=False)
    if lines is None:
        raise YamlError(Code.NOT_APPLICABLE, f"the value cannot be indented to stand under {show_path([*keys])}")
    return replace_value(tree, document, parent, read_fragment("\n".join(lines), document.tags))


def create_first(tree: Tree, keys: list[Key], fragment: Fragment) -> Tree:
    """The tree of a stream without any document, with a first document of `fragment` at `keys`."""
    lines = _block_entry(keys, fragment, Style(tree), 0, quoted=False) if keys else None
    if lines is None:
        lines = fragment.lines if fragment.is_block_collection and not keys else [fragment.head, *fragment.lines]
    text = tree.text
    style = Style(tree)
    size = len(text)
    line_break = style.line_break(max(size - 1, 0))
    block = line_break.join(lines)
    begun = not text or text == "\ufeff" or text[-1] in "\r\n"
    block = block + line_break if begun else line_break + block
    events: list[Event] = [(0, "", "", None, None)]
    for key in keys:
        events += [(MAPPING, "", "", None, None), key_event(key_source(key, flow=False, quoted=False))]
    events += fragment.events
    events += [CLOSING[MAPPING]] * len(keys)
    events.append((1, "", "", None, None))
    edited = check(tree, [Splice(size, size, block)], Expected(0, 0, events, frozenset(), fragment.comments))
    if edited is None:
        raise YamlError(Code.NOT_APPLICABLE, "the value cannot stand at the top of this file")
    return edited


def _block_entry(keys: list[Key], fragment: Fragment, style: Style, column: int, *, quoted: bool) -> list[str] | None:
    """The lines of `keys` with the fragment under the last, where the first key stands at `column`."""
    lines: list[str] = []
    for number, key in enumerate(keys):
        name = key_source(key, flow=False, quoted=quoted and number == 0)
        lines.append(" " * column + name + ":")
        column += style.unit
    column -= style.unit
    if fragment.is_block_collection:
        step = style.sequence_step if is_sequence(fragment.tree, 1) else style.unit
        below = fragment.shifted(column + step)
        if fragment.head:
            lines[-1] += " " + fragment.head
    elif fragment.is_block_scalar:
        below = fragment.shifted(column + style.unit)
        lines[-1] += " " + fragment.block_header(style.unit)
    else:
        first, *rest = BREAK.split(fragment.head)
        lines[-1] += " " + first
        shift = " " * (column + style.unit)
        below = [shift + line if line.strip(" \t") else line for line in rest]
    return None if below is None else lines + below


def _flow_entry(keys: list[Key], fragment: Fragment, quoted: bool, colon: str) -> str:
    value = fragment.head
    for key in reversed(keys[1:]):
        value = "{" + key_source(key, flow=True, quoted=quoted) + colon + value + "}"
    return key_source(keys[0], flow=True, quoted=quoted) + colon + value


def quotes_keys(tree: Tree, document: Document) -> bool:
    """Whether the flow mappings of a document quote all their keys, as JSON does; false where there is no key."""
    events = tree.stream.events
    found = False
    for node in range(document.event + 1, min(document.close, document.event + _SAMPLE)):
        if events[node][0] == MAPPING and tree.is_flow(node):
            for child in tree.children(node):
                if events[child.key][1] != '"':
                    return False
                found = True
    return found


def _nested_events(keys: list[Key], sources: list[str], fragment: Fragment, style: str) -> list[Event]:
    events: list[Event] = []
    for number, source in enumerate(sources):
        if number:
            events.append((MAPPING, style, "", None, None))
        events.append(key_event(source))
    return [*events, *fragment.events, *[CLOSING[MAPPING]] * (len(keys) - 1)]


def _insert_entry(
    tree: Tree, document: Document, parent: Place, keys: list[Key], fragment: Fragment, json_file: bool
) -> Tree:
    close = tree.stream.closes[parent.node]
    flow = tree.is_flow(parent.node)
    if flow:
        if fragment.is_block_collection or fragment.is_block_scalar:
            raise YamlError(
                Code.NOT_APPLICABLE,
                "a block value cannot stand inside a flow collection: write it as {…}, […] or a quoted string",
            )
        children = tree.children(parent.node)
        if children:
            quoted = all(tree.stream.events[child.key][1] == '"' for child in children)
        else:
            quoted = quotes_keys(tree, document) or json_file
        colon = _colon(tree, parent.node)
        entry = _flow_entry(keys, fragment, quoted, colon)
        candidates = insertions_flow(tree, parent.node, entry)
    else:
        quoted = False
        style = Style(tree)
        lines = _block_entry(keys, fragment, style, tree.column(parent.node), quoted=False)
        candidates = [] if lines is None else insertions_block(tree, parent.node, lines)
    sources = [key_source(key, flow=flow, quoted=quoted) for key in keys]
    events = _nested_events(keys, sources, fragment, "{}" if flow else "")
    expected = Expected(close, close, events, frozenset(), fragment.comments)
    for splices in candidates:
        edited = check(tree, splices, expected)
        if edited is not None:
            return edited
    raise YamlError(
        Code.NOT_APPLICABLE,
        f"the key {keys[0].name!r} cannot be added with this value without changing something else in the file",
    )


def _colon(tree: Tree, mapping: int) -> str:
    """The colon as the mapping writes it: without a space in dense JSON."""
    text = tree.text
    for child in tree.children(mapping):
        start = tree.stream.starts[child.node]
        if start > tree.stream.stops[child.key] and not tree.is_empty(child.node):
            return ":" if text[start - 1] == ":" else ": "
    at = tree.stream.bodies[mapping]
    return ":" if '":' in text[:at][-4000:] and '": ' not in text[:at][-4000:] else ": "


def insertions_block(tree: Tree, collection: int, lines: list[str]) -> list[list[Splice]]:
    """New lines after the last entry of a block collection, before the blank lines and comments that follow it."""
    text = tree.text
    stop = tree.stream.stops[collection]
    line_break = Style(tree).line_break(tree.stream.bodies[collection])
    block = line_break.join(lines)
    if stop > tree.stream.bodies[collection] and text[stop - 1] in "\r\n":
        # The entry ends with kept blank lines: they are content, and the new line begins right after them.
        return [[Splice(stop, stop, block + line_break)]]
    at = tree.line_stop(stop)
    return [[Splice(at, at, line_break + block)]]


def insertions_flow(tree: Tree, collection: int, entry: str) -> list[list[Splice]]:
    """A new last entry of a flow collection, on a line of its own where the entries have one each."""
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
    first = stream.starts[last.key if last.key >= 0 else last.node]
    if last.key >= 0:
        first = min(first, stream.starts[last.key])
    line = tree.line_start(first)
    out: list[list[Splice]] = []
    own_line = not text[line:first].strip(" \t") and line > stream.bodies[collection]
    if own_line:
        line_break = Style(tree).line_break(first)
        below = line_break + text[line:first] + entry
        line_stop = tree.line_stop(at)
        comma = text.find(",", at, close)
        if close > line_stop:
            trailing = text[at:line_stop].strip(" \t")
            if trailing.startswith(","):
                after = tree.line_stop(comma + 1)
                out.append([Splice(after, after, below + ",")])
            else:
                out.append([Splice(at, at, ","), Splice(line_stop, line_stop, below)])
        out.append([Splice(at, at, "," + below)])
    separator = ", "
    if len(children) > 1:
        before = text[stream.stops[children[-2].node] : first]
        separator = ",\t" if before == ",\t" else "," if before == "," else ", "
    elif ":" in entry and _colon(tree, collection) == ":" and last.key >= 0:
        separator = ","
    out.append([Splice(at, at, separator + entry)])
    if separator == ",":
        out.append([Splice(at, at, ", " + entry)])
    return out
