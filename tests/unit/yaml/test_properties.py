"""What holds for every document and every value, tried on random ones."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from services.yaml import check as checking
from services.yaml.check import Expected, Splice
from services.yaml.errors import Code, YamlError
from services.yaml.path import Index, Key, Step, parse_path, show_path
from services.yaml.syntax.events import MAPPING, SEQUENCE
from services.yaml.tree import Tree
from services.yaml.values import get_at, read_tree, set_at
from tests.unit.yaml.documents import FRAGMENTS, documents

QUICK = settings(suppress_health_check=list(HealthCheck))


def paths(tree: Tree) -> list[str]:
    """Every path of the first document."""
    out: list[str] = []

    def walk(node: int, steps: list[Step]) -> None:
        out.append(show_path(steps) if steps else "")
        kind = tree.stream.events[node][0]
        if kind == MAPPING:
            for name, place in tree.keys(node).items():
                walk(place.node, [*steps, Key(name, True)])
        elif kind == SEQUENCE:
            for place in tree.children(node):
                walk(place.node, [*steps, Index(place.number)])

    if tree.stream.documents:
        walk(tree.stream.documents[0].event + 1, [])
    return out


def pick(data: st.DataObject, tree: Tree) -> str:
    return data.draw(st.sampled_from(paths(tree)), label="path")


@pytest.mark.slow
@QUICK
@given(source=documents(), data=st.data())
def test_setting_what_a_get_answered_changes_nothing(source: str, data: st.DataObject) -> None:
    tree = read_tree(source)
    path = pick(data, tree)
    assert set_at(tree, path, get_at(tree, path)).text == source


@pytest.mark.slow
@QUICK
@given(source=documents(), data=st.data(), value=FRAGMENTS)
def test_after_a_set_a_get_answers_the_same_value_and_the_rest_is_untouched(
    source: str, data: st.DataObject, value: str
) -> None:
    tree = read_tree(source)
    path = pick(data, tree)
    assume(path)
    after = attempt(tree, path, value)
    if after is None:
        return
    again = set_at(after, path, get_at(after, path))
    assert again.text == after.text
    # Every other scalar of the document, in order, is the one that it was.
    place, now = locate(tree, path), locate(after, path)
    before_events, after_events = tree.stream.events, after.stream.events
    assert after_events[:now] == before_events[:place]
    assert after_events[after.stream.after(now) :] == before_events[tree.stream.after(place) :]
    # The bytes before the entry's line and behind the value's last line are the same bytes.
    head = tree.line_start(tree.stream.starts[place - 1]) if place > 1 else 0
    tail = len(source) - tree.next_line(tree.stream.stops[place])
    assert after.text[:head] == source[:head]
    assert tail <= 0 or after.text[-tail:] == source[-tail:]
    # And the tree that the edit left is the tree of its text.
    fresh = read_tree(after.text)
    assert fresh.stream.events == after_events
    assert fresh.stream.starts == after.stream.starts


def attempt(tree: Tree, path: str, value: str) -> Tree | None:
    """The tree after a set, None where it was refused as not applicable: any other fault is one of the code."""
    try:
        return set_at(tree, path, value)
    except YamlError as fault:
        if fault.code != Code.NOT_APPLICABLE:
            raise
        return None


def locate(tree: Tree, path: str) -> int:
    """The event of the node at a path."""
    return tree.find(tree.stream.documents[0], parse_path(path)).node


@pytest.mark.slow
@QUICK
@given(source=documents(), data=st.data(), value=FRAGMENTS)
def test_reading_only_the_changed_lines_finds_what_reading_all_finds(
    source: str, data: st.DataObject, value: str
) -> None:
    tree = read_tree(source)
    path = pick(data, tree) + data.draw(st.sampled_from(["", "", ".new", '["n.w"].x']), label="new")
    asked: list[tuple[Tree, list[Splice], Expected]] = []
    real = checking.check

    def spy(tree: Tree, splices: list[Splice], expected: Expected) -> Tree | None:
        asked.append((tree, list(splices), expected))
        return real(tree, splices, expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "check", spy)
        with suppress(YamlError):
            set_at(tree, path.lstrip("."), value)
    for before, splices, expected in asked:
        whole = real(before, splices, expected, whole=True)
        part = real(before, splices, expected, whole=False)
        assert (whole is None) == (part is None)
        if whole is not None and part is not None:
            for name in ("text", "events", "starts", "bodies", "stops", "closes", "comments", "documents"):
                assert getattr(part.stream, name) == getattr(whole.stream, name), name


@pytest.mark.slow
@QUICK
@given(source=documents(), data=st.data())
def test_a_created_key_is_found_and_all_else_is_as_it_was(source: str, data: st.DataObject) -> None:
    tree = read_tree(source)
    path = (pick(data, tree) + ".brand.new").lstrip(".")
    after = attempt(tree, path, "v")
    if after is None:
        return
    assert get_at(after, path) == "v"
    assert [event for event in after.stream.events if event[2] not in ("brand", "new", "v")][:1] == tree.stream.events[
        :1
    ]
    assert sorted(after.stream.comment_texts()) == sorted(tree.stream.comment_texts())
