"""Comments of a node, on the lines directly above it and after it on its line: reading, writing, and deleting them."""

from services.yaml.check import Expected, Splice, check, first_right
from services.yaml.errors import NotApplicable
from services.yaml.layout import Style, find_slot
from services.yaml.syntax.events import Document
from services.yaml.syntax.tokens import BREAK
from services.yaml.tree import NodePlace, Tree


def read_comments(tree: Tree, document: Document, place: NodePlace) -> tuple[str | None, str | None]:
    """Return the comments above the node at `place` (several lines joined by LF) and beside it, each without its # and
    the space after it; None if missing."""
    above = _above(tree, _first_line(tree, place))
    beside = _beside(tree, document, place)
    comments = tree.stream.comment_texts()
    return (
        "\n".join(_plain(comments[index]) for index in above) if above else None,
        _plain(comments[beside]) if beside is not None else None,
    )


def write_comments(
    tree: Tree, document: Document, place: NodePlace, *, above: str | None = None, beside: str | None = None
) -> Tree:
    """Return the tree with the comments of a node replaced; None keeps a comment, "" removes it.

    Raises YamlError (-32003).
    """
    stream = tree.stream
    splices: list[Splice] = []
    dropped: set[int] = set()
    added: list[str] = []
    if above is not None:
        line = _first_line(tree, place)
        old = _above(tree, line)
        lines = [_comment(text) for text in BREAK.split(above)] if above else []
        first = tree.line_start(stream.comments[old[0]][0]) if old else line
        own = tree.text[line : tree.line_stop(line)]
        indent = " " * (len(own) - len(own.lstrip(" ")))
        line_break = Style(tree).line_break(line)
        splices.append(Splice(first, line, "".join(indent + text + line_break for text in lines)))
        dropped.update(old)
        added += lines
    if beside is not None:
        if BREAK.search(beside):
            raise NotApplicable("a comment beside a value is one line: put several above it")
        found = _beside(tree, document, place)
        text = _comment(beside) if beside else ""
        if found is not None:
            start, stop = stream.comments[found]
            splices.append(Splice(start if text else tree.before_spaces(start), stop, text))
            dropped.add(found)
        elif text:
            stop = tree.before_spaces(tree.line_stop(_beside_at(tree, document, place)))
            splices.append(Splice(stop, stop, "  " + text))
        if text:
            added.append(text)
    refusal = "a comment here would change something else in the file"
    return first_right(tree, [splices], Expected(0, 0, [], frozenset(dropped), added), refusal)


def without_own_comments(tree: Tree, document: Document, place: NodePlace) -> Tree:
    """Return the tree without the comments that belong to the entry at `place`, and would be left behind by its
    deletion.

    These are the lines directly above it at its indentation, unless they begin the file, and its trailing comment with
    the lines that continue it. Returns `tree` itself without any.
    """
    stream = tree.stream
    splices: list[Splice] = []
    dropped = _own_above(tree, place)
    if dropped:
        first, last = stream.comments[dropped[0]][0], stream.comments[dropped[-1]][0]
        splices.append(Splice(tree.line_start(first), tree.next_line(last), ""))
    # A block collection has two trailing comments: that on its key's line, and that on its last line.
    found = {_beside(tree, document, each) for each in (place, _last_inside(tree, place))}
    for beside in sorted(index for index in found if index is not None):
        start, stop = stream.comments[beside]
        if start < stream.starts[place.first]:
            continue
        more = _continuation(tree, beside)
        splices.append(
            Splice(tree.before_spaces(start), tree.line_stop(stream.comments[more[-1]][0]) if more else stop, "")
        )
        dropped += [beside, *more]
    if not splices:
        return tree
    return check(tree, splices, Expected(0, 0, [], frozenset(dropped))) or tree


def after_last_line(tree: Tree, at: int) -> int:
    """Return the offset after the line of `at` and the comment lines below it that continue its trailing comment."""
    index = _by_line(tree).get(tree.line_start(at))
    more = [] if index is None or tree.stream.comments[index][0] < at else _continuation(tree, index)
    return tree.next_line(tree.stream.comments[more[-1]][0] if more else at)


def comments_stop(tree: Tree, at: int, column: int) -> int:
    """Return the end of the line of `at`, or of the comment lines directly below it that are indented deeper than
    `column`.

    Those lines continue the trailing comment, or belong to the content of the entry above.
    """
    stream = tree.stream
    stop = tree.line_stop(at)
    by_line = _by_line(tree)
    while True:
        line = tree.next_line(stop)
        index = by_line.get(line)
        if line <= stop or index is None:
            return stop
        start = stream.comments[index][0]
        if tree.text[line:start].strip(" \t") or _width(tree.text[line:start]) <= column:
            return stop
        stop = tree.line_stop(start)


def _own_above(tree: Tree, place: NodePlace) -> list[int]:
    """Return the comments directly above an entry that are its own, in order."""
    stream = tree.stream
    start = stream.starts[place.key] if place.key >= 0 else _first_offset(tree, place)
    line = tree.line_start(start)
    indent = tree.text[line:start]
    is_alone = not indent.strip(" \t?") and not _shares_line(tree, place)
    column = len(indent) - len(indent.lstrip(" \t")) if "?" in indent else len(indent)
    own: list[int] = []
    for index in _above(tree, line)[::-1] if is_alone else []:
        at = stream.comments[index][0]
        if at - tree.line_start(at) != column:
            break
        own.insert(0, index)
    # A comment at the start of the file is about the file: a licence, a modeline.
    is_head = bool(own) and not tree.text[: stream.comments[own[0]][0]].strip(" \t\r\n\ufeff")
    return [] if is_head else own


def _last_inside(tree: Tree, place: NodePlace) -> NodePlace:
    """Return the entry on whose line a block collection ends, however deep; otherwise `place` itself."""
    while tree.is_block_collection(place.node) and (inside := tree.children(place.node)):
        place = inside[-1]
    return place


def _first_offset(tree: Tree, place: NodePlace) -> int:
    in_block = place.parent >= 0 and not tree.is_flow(place.parent)
    return tree.dash_stop(place) - 1 if in_block else tree.stream.starts[place.node]


def _shares_line(tree: Tree, place: NodePlace) -> bool:
    """True if another entry of its flow collection begins on the line where this one ends."""
    if not tree.is_flow(place.parent):
        return False
    siblings = tree.children(place.parent)
    if place.number + 1 == len(siblings):
        return False
    return tree.stream.starts[siblings[place.number + 1].first] <= tree.line_stop(tree.stream.stops[place.node])


def _continuation(tree: Tree, index: int) -> list[int]:
    """Return the comment lines directly below a trailing comment that are aligned with it."""
    stream = tree.stream
    start = stream.comments[index][0]
    line = tree.line_start(start)
    width = _width(tree.text[line:start])
    by_line = _by_line(tree)
    found: list[int] = []
    while (below := by_line.get(line := tree.next_line(line))) is not None:
        at = stream.comments[below][0]
        if _width(tree.text[line:at]) != width or tree.text[line:at].strip(" \t"):
            break
        found.append(below)
    return found


def _width(text: str) -> int:
    """Return the column at which a text ends, with a tab stop every eight."""
    return len(text.expandtabs(8))


def _by_line(tree: Tree) -> dict[int, int]:
    """Return the last comment of each line, by the offset at which the line begins."""
    return {tree.line_start(start): index for index, (start, _) in enumerate(tree.stream.comments)}


def _plain(comment: str) -> str:
    return comment[1:].removeprefix(" ")


def _comment(text: str) -> str:
    if text.startswith("#"):
        return text
    return "# " + text if text else "#"


def _first_line(tree: Tree, place: NodePlace) -> int:
    """Return the offset of the line on which a node's entry begins."""
    stream = tree.stream
    if place.key >= 0:
        return tree.line_start(stream.starts[place.key])
    return tree.line_start(_first_offset(tree, place))


def _above(tree: Tree, line: int) -> list[int]:
    """Return the comments on the lines directly above a line, in order."""
    by_line = _by_line(tree)
    out: list[int] = []
    while line > 0:
        before = tree.line_start(tree.before_break(line))
        index = by_line.get(before)
        if index is None or tree.text[before : tree.stream.comments[index][0]].strip(" \t\ufeff"):
            break
        out.append(index)
        line = before
    return out[::-1]


def _beside_at(tree: Tree, document: Document, place: NodePlace) -> int:
    """Return an offset on the line whose end is beside the node: its key's line for a block value, else its last
    line."""
    stream = tree.stream
    if tree.is_block_scalar(place.node):
        return stream.bodies[place.node]
    if tree.is_block_collection(place.node):
        slot = find_slot(tree, place, document)
        return max(slot.at, slot.properties_stop if slot.on_line else slot.at)
    return stream.stops[place.node]


def _beside(tree: Tree, document: Document, place: NodePlace) -> int | None:
    at = _beside_at(tree, document, place)
    stop = tree.line_stop(at)
    for index, (start, _) in enumerate(tree.stream.comments):
        if at <= start <= stop:
            between = " \t|>+-0123456789" if tree.is_block_scalar(place.node) else " \t,"
            return None if tree.text[at:start].strip(between) else index
    return None
