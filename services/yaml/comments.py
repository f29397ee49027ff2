"""Comments of a node: those on the lines straight above it and the one beside it, read and written."""

from services.yaml.check import Expected, Splice, first_right
from services.yaml.errors import NotApplicable
from services.yaml.layout import Style, find_slot
from services.yaml.syntax.events import Document
from services.yaml.syntax.tokens import BREAK
from services.yaml.tree import Place, Tree


def read_comments(tree: Tree, document: Document, place: Place) -> tuple[str | None, str | None]:
    """The comments above the node at `place` (several lines joined by LF) and beside it, without their # and the space
    after it; None where there is none."""
    above = _above(tree, _first_line(tree, place))
    beside = _beside(tree, document, place)
    comments = tree.stream.comment_texts()
    return (
        "\n".join(_plain(comments[index]) for index in above) if above else None,
        _plain(comments[beside]) if beside is not None else None,
    )


def write_comments(
    tree: Tree, document: Document, place: Place, *, above: str | None = None, beside: str | None = None
) -> Tree:
    """The tree with the comments of a node replaced; None leaves one as it is, "" takes it away.

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
    refusal = "a comment cannot stand here without changing something else in the file"
    return first_right(tree, [splices], Expected(0, 0, [], frozenset(dropped), added), refusal)


def _plain(comment: str) -> str:
    return comment[1:].removeprefix(" ")


def _comment(text: str) -> str:
    if text.startswith("#"):
        return text
    return "# " + text if text else "#"


def _first_line(tree: Tree, place: Place) -> int:
    """Where the line begins on which the entry of a node does."""
    stream = tree.stream
    if place.key >= 0:
        return tree.line_start(stream.starts[place.key])
    in_block = place.parent >= 0 and not tree.is_flow(place.parent)
    return tree.line_start(tree.dash_stop(place) - 1 if in_block else stream.starts[place.node])


def _above(tree: Tree, line: int) -> list[int]:
    """The comments on the lines straight above a line, in order."""
    by_line = {tree.line_start(start): index for index, (start, _) in enumerate(tree.stream.comments)}
    out: list[int] = []
    while line > 0:
        before = tree.line_start(tree.before_break(line))
        index = by_line.get(before)
        if index is None or tree.text[before : tree.stream.comments[index][0]].strip(" \t\ufeff"):
            break
        out.append(index)
        line = before
    return out[::-1]


def _beside_at(tree: Tree, document: Document, place: Place) -> int:
    """An offset on the line whose end is beside the node: its key's line for a block value, else its last line."""
    stream = tree.stream
    if tree.is_block_scalar(place.node):
        return stream.bodies[place.node]
    if tree.is_block_collection(place.node):
        slot = find_slot(tree, place, document)
        return max(slot.at, slot.properties_stop if slot.on_line else slot.at)
    return stream.stops[place.node]


def _beside(tree: Tree, document: Document, place: Place) -> int | None:
    at = _beside_at(tree, document, place)
    stop = tree.line_stop(at)
    for index, (start, _) in enumerate(tree.stream.comments):
        if at <= start <= stop:
            return None if tree.text[at:start].strip(" \t,|>+-0123456789") else index
    return None
