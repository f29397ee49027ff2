"""Deletes entries, appends items and renames keys, each verified like a set."""

from services.yaml.check import Expected, Splice, check, first_right
from services.yaml.comments import after_last_line, without_own_comments
from services.yaml.create import insertions_block, insertions_flow, key_event, key_source
from services.yaml.errors import NotApplicable
from services.yaml.fragment import Fragment, read_fragment
from services.yaml.layout import enclosing
from services.yaml.path import Key
from services.yaml.replacement import replace_value
from services.yaml.syntax.events import MAPPING, SCALAR, SEQUENCE, Document
from services.yaml.tree import NodePlace, Tree


def delete(tree: Tree, document: Document, place: NodePlace, parent: NodePlace) -> Tree:
    """Return the tree without the entry at `place`, its key and its own comments. Raises YamlError (-32003).

    Deleting the last entry of a block collection leaves `{}` or `[]`.
    """
    tree = without_own_comments(tree, document, place)
    stream = tree.stream
    siblings = tree.children(parent.node)
    if place.key >= 0:
        name = tree.key_text(place.key)
        if sum(tree.key_text(child.key) == name for child in siblings) > 1:
            raise NotApplicable(f"the key {name!r} occurs more than once: rename or set one of them first")
    flow = tree.is_flow(parent.node)
    if len(siblings) == 1 and not flow:
        empty = "{}" if stream.events[parent.node][0] == MAPPING else "[]"
        return replace_value(tree, document, parent, read_fragment(empty, document.tags))
    removals = _flow_removals(tree, place, siblings) if flow else _block_removals(tree, place, siblings)
    for splices, (start, stop) in removals:
        dropped = frozenset(index for index, (at, _) in enumerate(stream.comments) if start <= at < stop)
        edited = check(tree, splices, Expected(place.first, stream.after(place.node), [], dropped))
        if edited is not None:
            return edited
    raise NotApplicable(
        "deleting this entry would change something else in the file: an alias may need an anchor in it, or there is a "
        "comment between it and its neighbour"
    )


Removal = tuple[list[Splice], tuple[int, int]]
"""The splices of a candidate, and the range of offsets whose comments are deleted with the entry."""


def _entry_start(tree: Tree, place: NodePlace) -> int:
    """Return the offset of the first character of an entry of a block collection: its key, its ? or its dash."""
    if place.key < 0:
        return tree.dash_stop(place) - 1
    start = tree.stream.starts[place.key]
    mark = tree.before_spaces(start) - 1
    return mark if mark >= tree.line_start(start) and tree.text[mark] == "?" else start


def _block_removals(tree: Tree, place: NodePlace, siblings: list[NodePlace]) -> list[Removal]:
    text = tree.text
    start = _entry_start(tree, place)
    stop = tree.stream.stops[place.node]
    line = tree.line_start(start)
    ends_line = stop > start and text[stop - 1] in "\r\n"
    if text[line:start].strip(" "):
        # The first entry is beside the dash of its item; comments below it are about the second.
        following = _entry_start(tree, siblings[1])
        bare = tree.before_break(stop) if ends_line else tree.line_stop(stop)
        return [
            ([Splice(start, following, "")], (start, tree.next_line(stop))),
            ([Splice(tree.before_spaces(start), bare, "")], (start, bare)),
        ]
    end = stop if ends_line else after_last_line(tree, stop)
    ends_text = end == len(text) and not text.endswith(("\n", "\r"))
    return [([Splice(tree.before_break(line) if ends_text else line, end, "")], (line, end))]


def _flow_removals(tree: Tree, place: NodePlace, siblings: list[NodePlace]) -> list[Removal]:
    text = tree.text
    stream = tree.stream
    start, stop = stream.starts[place.first], stream.stops[place.node]
    if place.key >= 0:
        stop = max(stop, stream.stops[place.key])
    line, after = tree.line_start(start), tree.next_line(stop)
    is_on_own_lines = not text[line:start].strip(" \t") and not text[stop:after].strip(" \t\r\n,")
    whole_lines: Removal = ([Splice(line, after, "")], (line, after))
    if len(siblings) == 1:
        close = stream.stops[place.parent] - 1
        comma = _comma(tree, stop, close)
        return [
            ([Splice(stream.bodies[place.parent] + 1, close, "")], (start, stop)),
            *([whole_lines] if is_on_own_lines else []),
            ([Splice(start, stop if comma is None else comma + 1, "")], (start, stop)),
        ]
    if place.number + 1 < len(siblings):
        following = stream.starts[siblings[place.number + 1].first]
        comma = _comma(tree, stop, following)
        return [
            ([Splice(start, following, "")], (start, min(following, tree.line_stop(stop)))),
            *([whole_lines] if is_on_own_lines else []),
            # Comments of the next entry come in between, and this one shares its line.
            *([] if comma is None else [([Splice(tree.before_spaces(start), comma + 1, "")], (start, stop))]),
        ]
    previous = stream.stops[siblings[place.number - 1].node]
    out: list[Removal] = [([Splice(previous, stop, "")], (start, stop))]
    comma = _comma(tree, previous, start)
    if comma is None:
        return out
    if is_on_own_lines:
        if "," in text[stop:after]:
            out.append(whole_lines)
        out.append(([Splice(comma, comma + 1, ""), Splice(line, after, "")], (line, after)))
    # Comments of the previous entry come in between, and the closing bracket is on this line.
    trailing = _comma(tree, stop, stream.stops[place.parent] - 1)
    if trailing is None:
        own = start if text[comma + 1 : start].strip(" \t") else comma + 1
        out.append(([Splice(comma, comma + 1, ""), Splice(own, stop, "")], (start, stop)))
    else:
        out.append(([Splice(start, trailing + 1, "")], (start, stop)))
    return out


def _comma(tree: Tree, start: int, stop: int) -> int | None:
    """Return the offset of the first comma between two offsets that is not in a comment."""
    comments = [(at, end) for at, end in tree.stream.comments if start <= at < stop]
    at = tree.text.find(",", start, stop)
    while at >= 0 and any(first <= at < end for first, end in comments):
        at = tree.text.find(",", at + 1, stop)
    return at if at >= 0 else None


def append(tree: Tree, document: Document, place: NodePlace, fragment: Fragment) -> Tree:
    """Return the tree with another item at the end of the sequence (or null) at `place`. Raises YamlError (-32003)."""
    stream = tree.stream
    kind = stream.events[place.node][0]
    if tree.is_null(place.node):
        _, flow = enclosing(tree, place, document)
        source = f"[{fragment.head}]" if flow else "\n".join(_item_lines(fragment, 0, 1))
        return replace_value(tree, document, place, read_fragment(source, document.tags))
    if kind != SEQUENCE:
        what = "mapping" if kind == MAPPING else "scalar" if kind == SCALAR else "alias"
        raise NotApplicable(f"only a sequence can be appended to: this is a {what}")
    close = stream.closes[place.node]
    if tree.is_flow(place.node):
        fragment.require_inline()
        candidates = insertions_flow(tree, place.node, fragment.head)
    else:
        last = tree.children(place.node)[-1]
        gap = tree.text[tree.dash_stop(last) : stream.starts[last.node]]
        width = len(gap) if gap and not gap.strip(" ") else 1
        candidates = insertions_block(tree, place.node, _item_lines(fragment, tree.column(place.node), width))
    expected = Expected(close, close, fragment.events, added=fragment.comments)
    refusal = "appending the value would change something else in the file"
    return first_right(tree, candidates, expected, refusal)


def _item_lines(fragment: Fragment, column: int, gap: int) -> list[str]:
    """Return the lines of a new item whose dash is at `column`, its value `gap` columns after the dash."""
    inner = column + 1 + gap
    lead = " " * column + "-" + " " * gap
    if fragment.is_block_collection and not fragment.head:
        lines = fragment.shifted(inner) or fragment.lines
        return [lead + lines[0][inner:], *lines[1:]]
    if fragment.is_block_collection or fragment.is_block_scalar:
        head = fragment.block_header(inner - column) if fragment.is_block_scalar else fragment.head
        return [lead + head, *(fragment.shifted(inner) or fragment.lines)]
    first, *rest = fragment.inline_lines(inner)
    return [lead + first, *rest]


def rename(tree: Tree, document: Document, place: NodePlace, name: str) -> Tree:
    """Return the tree with the key of the entry at `place` renamed; its quotes stay. Raises YamlError (-32003)."""
    stream = tree.stream
    if place.key < 0:
        raise NotApplicable("only the key of a mapping can be renamed")
    kind, style, old, anchor, tag = stream.events[place.key]
    if kind != SCALAR or style in ("|", ">"):
        raise NotApplicable("only a plain or quoted key can be renamed")
    if name == old:
        return tree
    if name in tree.keys(place.parent):
        raise NotApplicable(f"the mapping already has a key {name!r}")
    _, flow = enclosing(tree, place, document)
    if style == "'" and "\n" not in name and "\r" not in name:
        source = "'" + name.replace("'", "''") + "'"
    else:
        source = key_source(Key(name), flow=flow, quoted=style == '"')
    written = key_event(source)
    expected = Expected(place.key, place.key + 1, [(*written[:3], anchor, tag)])
    splice = Splice(stream.bodies[place.key], stream.stops[place.key], source)
    return first_right(tree, [[splice]], expected, f"the key cannot be renamed to {name!r} here")
