"""Deleting an entry, appending an item and renaming a key, each under the same check as a set."""

from services.yaml.check.edits import Expected, Splice, check
from services.yaml.edit.create import insertions_block, insertions_flow, key_event, key_source
from services.yaml.edit.fragment import Fragment, read_fragment
from services.yaml.edit.replacement import replace_value
from services.yaml.edit.slot import enclosing, find_slot
from services.yaml.errors import Code, YamlError
from services.yaml.path import Key
from services.yaml.syntax.events import MAPPING, SCALAR, SEQUENCE, Document, Event
from services.yaml.syntax.tokens import BREAK
from services.yaml.tree import Place, Tree


def delete(tree: Tree, document: Document, place: Place, parent: Place) -> Tree:
    """The tree without the entry at `place`, its key and the comments on its own lines. Raises YamlError (-32003).

    The last entry of a block collection leaves `{}` or `[]` in its stead.
    """
    stream = tree.stream
    siblings = tree.children(parent.node)
    if place.key >= 0:
        name = tree.key_text(place.key)
        if sum(tree.key_text(child.key) == name for child in siblings) > 1:
            raise YamlError(
                Code.NOT_APPLICABLE, f"the key {name!r} occurs more than once: rename or set one of them first"
            )
    flow = tree.is_flow(parent.node)
    if len(siblings) == 1 and not flow:
        empty = "{}" if stream.events[parent.node][0] == MAPPING else "[]"
        return replace_value(tree, document, parent, read_fragment(empty, document.tags))
    first = place.key if place.key >= 0 else place.node
    candidates = _flow_removals(tree, place, siblings) if flow else _block_removals(tree, document, place, siblings)
    for splices, dropped in candidates:
        edited = check(tree, splices, Expected(first, stream.after(place.node), [], dropped, []))
        if edited is not None:
            return edited
    raise YamlError(
        Code.NOT_APPLICABLE,
        "this entry cannot be deleted without changing something else in the file: "
        "an alias may need an anchor in it, or a comment stands between it and its neighbour",
    )


def _entry_start(tree: Tree, document: Document, place: Place) -> int:
    """The offset of an entry's first character: its key, its ? or its dash."""
    stream = tree.stream
    if place.key < 0:
        return stream.starts[place.node] if tree.is_flow(place.parent) else find_slot(tree, place, document).at - 1
    start = stream.starts[place.key]
    line = tree.line_start(start)
    mark = start
    while mark > line and tree.text[mark - 1] in " \t":
        mark -= 1
    if mark > line and tree.text[mark - 1] == "?":
        return mark - 1
    return start


def _inside(tree: Tree, start: int, stop: int) -> frozenset[int]:
    return frozenset(index for index, (at, _) in enumerate(tree.stream.comments) if start <= at < stop)


def _block_removals(
    tree: Tree, document: Document, place: Place, siblings: list[Place]
) -> list[tuple[list[Splice], frozenset[int]]]:
    text = tree.text
    start = _entry_start(tree, document, place)
    stop = tree.stream.stops[place.node]
    line = tree.line_start(start)
    if text[line:start].strip(" "):
        following = _entry_start(tree, document, siblings[1])
        return [([Splice(start, following, "")], _inside(tree, start, tree.next_line(stop)))]
    ends_line = stop > start and text[stop - 1] in "\r\n"
    end = stop if ends_line else tree.next_line(stop)
    if end == len(text) and not text.endswith(("\n", "\r")):
        before = line - (2 if text.startswith("\r\n", line - 2) else 1)
        return [([Splice(max(before, 0), end, "")], _inside(tree, line, end))]
    return [([Splice(line, end, "")], _inside(tree, line, end))]


def _flow_removals(tree: Tree, place: Place, siblings: list[Place]) -> list[tuple[list[Splice], frozenset[int]]]:
    text = tree.text
    stream = tree.stream

    def begin(child: Place) -> int:
        return stream.starts[child.key if child.key >= 0 else child.node]

    start, stop = begin(place), stream.stops[place.node]
    if place.key >= 0 and stream.stops[place.key] > stop:
        stop = stream.stops[place.key]
    if len(siblings) == 1:
        opening = stream.bodies[place.parent] + 1
        closing = stream.stops[place.parent] - 1
        return [([Splice(opening, closing, "")], _inside(tree, start, stop))]
    if place.number + 1 < len(siblings):
        following = begin(siblings[place.number + 1])
        own = _inside(tree, start, following)
        same_line = _inside(tree, start, tree.line_stop(stop))
        return [([Splice(start, following, "")], own & same_line)]
    previous = stream.stops[siblings[place.number - 1].node]
    line = tree.line_start(start)
    out = [([Splice(previous, stop, "")], _inside(tree, start, stop))]
    comma = text.find(",", previous)
    if not text[line:start].strip(" \t") and comma < start:
        out.append(
            (
                [Splice(comma, comma + 1, ""), Splice(line, tree.next_line(stop), "")],
                _inside(tree, line, tree.next_line(stop)),
            )
        )
    return out


def append(tree: Tree, document: Document, place: Place, fragment: Fragment) -> Tree:
    """The tree with one more item at the end of the sequence (or null) at `place`. Raises YamlError (-32003)."""
    stream = tree.stream
    kind = stream.events[place.node][0]
    if tree.is_null(place.node):
        _, flow = enclosing(tree, place, document)
        source = f"[{fragment.head}]" if flow else "\n".join(_item_lines(fragment, 0, 1))
        return replace_value(tree, document, place, read_fragment(source, document.tags))
    if kind != SEQUENCE:
        what = "mapping" if kind == MAPPING else "scalar" if kind == SCALAR else "alias"
        raise YamlError(Code.NOT_APPLICABLE, f"only a sequence can be appended to: this is a {what}")
    close = stream.closes[place.node]
    if tree.is_flow(place.node):
        if fragment.is_block_collection or fragment.is_block_scalar:
            raise YamlError(
                Code.NOT_APPLICABLE, "a block value cannot stand inside a flow sequence: write it as {…} or […]"
            )
        candidates = insertions_flow(tree, place.node, fragment.head)
    else:
        column = tree.column(place.node)
        last = tree.children(place.node)[-1].node
        dash = find_slot(tree, tree.children(place.node)[-1], document).at
        gap = tree.text[dash : stream.starts[last]]
        width = len(gap) if gap and not gap.strip(" ") else 1
        candidates = insertions_block(tree, place.node, _item_lines(fragment, column, width))
    for splices in candidates:
        edited = check(tree, splices, Expected(close, close, fragment.events, frozenset(), fragment.comments))
        if edited is not None:
            return edited
    raise YamlError(Code.NOT_APPLICABLE, "the value cannot be appended without changing something else in the file")


def _item_lines(fragment: Fragment, column: int, gap: int) -> list[str]:
    """The lines of a new item whose dash stands at `column`, its value `gap` columns after the dash."""
    inner = column + 1 + gap
    lead = " " * column + "-" + " " * gap
    if fragment.is_block_collection and not fragment.head:
        lines = fragment.shifted(inner) or fragment.lines
        return [lead + lines[0][inner:], *lines[1:]]
    if fragment.is_block_collection or fragment.is_block_scalar:
        head = fragment.block_header(inner - column) if fragment.is_block_scalar else fragment.head
        return [lead + head, *(fragment.shifted(inner) or fragment.lines)]
    first, *rest = BREAK.split(fragment.head)
    return [lead + first, *(" " * inner + line if line.strip(" \t") else line for line in rest)]


def rename(tree: Tree, document: Document, place: Place, name: str) -> Tree:
    """The tree with the key of the entry at `place` renamed; its quotes stay. Raises YamlError (-32003)."""
    stream = tree.stream
    if place.key < 0:
        raise YamlError(Code.NOT_APPLICABLE, "only the key of a mapping can be renamed")
    kind, style, old, anchor, tag = stream.events[place.key]
    if kind != SCALAR or style in ("|", ">"):
        raise YamlError(Code.NOT_APPLICABLE, "only a plain or quoted key can be renamed")
    if name == old:
        return tree
    if name in tree.keys(place.parent):
        raise YamlError(Code.NOT_APPLICABLE, f"the mapping already has a key {name!r}")
    _, flow = enclosing(tree, place, document)
    if style == "'" and "\n" not in name and "\r" not in name:
        source = "'" + name.replace("'", "''") + "'"
    else:
        source = key_source(Key(name), flow=flow, quoted=style == '"')
    written: Event = key_event(source)
    start, stop = stream.bodies[place.key], stream.stops[place.key]
    expected = Expected(place.key, place.key + 1, [(written[0], written[1], written[2], anchor, tag)], frozenset(), [])
    edited = check(tree, [Splice(start, stop, source)], expected)
    if edited is None:
        raise YamlError(Code.NOT_APPLICABLE, f"the key cannot be renamed to {name!r} here")
    return edited
