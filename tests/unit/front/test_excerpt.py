"""Long answers: bounded, with the beginning of everything, and nothing of them out of reach."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto import ops
from proto.ops.documents.reading import DocumentsGet
from proto.origin import Origin
from services.front import scratchpad
from services.front.excerpt import Excerpt, excerpt
from services.front.operations.steps import ScratchpadRead
from services.front.scratchpad import Scratchpad, Scratchpads, _read
from services.knowledge.operations.notes import ReadNodeContent

TABLE = ops.load()
SEARCH = TABLE["chats_search"]
QUERY = SEARCH.parse({"query": "x"})


@pytest.fixture
def pad() -> Scratchpad:
    made = Scratchpads().open()
    scratchpad.current.set(made)
    return made


def hits(count: int, chars: int) -> dict[str, Any]:
    return {
        "count": count,
        "results": [{"hash": f"{n:064}", "score": 0.5, "preview": "ä" * chars} for n in range(count)],
    }


@pytest.mark.parametrize("value", [
    hits(5, 50_000), hits(5_000, 10), {"text": '"\n' * 100_000}, {f"k{n}": "x" * 90 for n in range(9_000)},
    {"a": {"b": {"c": [["x" * 9_000] * 20] * 20}}}, {"results": [[[["x"]]]] * 20_000},
])  # fmt: skip
@pytest.mark.parametrize("tokens", [100, 500, None])
def test_no_answer_is_longer_than_it_may_be_and_the_whole_is_kept(
    pad: Scratchpad, value: dict[str, Any], tokens: int | None
) -> None:
    short = excerpt(SEARCH, QUERY, value, tokens)
    assert isinstance(short, Excerpt)
    assert len(msgspec.json.encode(short).decode()) <= (tokens or 2000) * 4 + 600
    assert short["more"]["left_out"]
    entry = pad.read(short["more"]["whole"]["params"]["id"])
    assert entry is not None
    assert msgspec.json.decode(entry.text) == value


def test_every_hit_is_shown_in_part_before_any_is_shown_in_full(pad: Scratchpad) -> None:
    short = excerpt(SEARCH, QUERY, hits(5, 50_000), None)
    assert isinstance(short, Excerpt)
    assert [hit["hash"] for hit in short["results"]] == [f"{n:064}" for n in range(5)]
    assert all(200 < len(hit["preview"]) < 2_000 for hit in short["results"])
    assert short["count"] == 5


def test_a_short_answer_is_as_it_was(pad: Scratchpad) -> None:
    value = hits(5, 10)
    assert excerpt(SEARCH, QUERY, value, None) is value


def test_a_list_becomes_an_object_that_says_what_is_left_out(pad: Scratchpad) -> None:
    op = TABLE["notes_links"]
    short = excerpt(op, op.parse({"id": "a"}), [{"target": f"note-{n}"} for n in range(9_000)], None)
    assert isinstance(short, Excerpt)
    assert f"{len(short['result'])} of 9000 shown" in short["more"]["left_out"][0]


def test_a_text_that_is_cut_says_at_which_line_to_go_on(pad: Scratchpad) -> None:
    op = TABLE["notes_read"]
    lines = [f"line {n} of a long note\n" for n in range(1, 3001)]
    short = excerpt(op, ReadNodeContent(id="a"), {"text": "".join(lines)}, None)
    assert isinstance(short, Excerpt)
    shown = short["text"].splitlines(keepends=True)
    assert shown == lines[: len(shown)]
    assert short["more"]["go_on"] == {"lines": f"{len(shown) + 1}-"}
    later = excerpt(op, ReadNodeContent(id="a", lines="900-"), {"text": "".join(lines[899:]), "lines": "900-3000"}, 200)
    assert isinstance(later, Excerpt)
    assert later["more"]["go_on"] == {"lines": f"{900 + later['text'].count(chr(10))}-"}


def test_truncated_content_is_marked(pad: Scratchpad) -> None:
    value: dict[str, Any] = {
        "hash": "ab",
        "content": "ä" * 90_000,
        "content_truncated": False,
        "content_length": 180_000,
    }
    short = excerpt(TABLE["documents_get"], DocumentsGet(hash="ab"), value, None)
    assert isinstance(short, Excerpt)
    assert short["content_truncated"] is True
    assert value["content"].startswith(short["content"])
    assert short["content_length"] == 2 * len(short["content"]) > 5_000
    data = {**value, "content": base64.b64encode(bytes(90_001)).decode(), "content_encoding": "base64"}
    cut = excerpt(TABLE["documents_get"], DocumentsGet(hash="ab"), data, None)
    assert isinstance(cut, Excerpt)
    assert len(base64.b64decode(cut["content"])) == cut["content_length"]


async def test_kept_results_are_read_to_their_end_in_bounded_parts(pad: Scratchpad) -> None:
    value = {"text": "äöü \n" * 9_000}
    whole = excerpt(SEARCH, QUERY, value, None)
    assert isinstance(whole, Excerpt)
    entry = whole["more"]["whole"]["params"]["id"]
    op, read, offset = TABLE["scratchpad_read"], "", 0
    while True:
        params = ScratchpadRead(id=entry, offset=offset)
        part = excerpt(op, params, msgspec.to_builtins(await _read(params, Origin("client"))), None)
        assert isinstance(part, dict)
        read += part["text"]
        if not isinstance(part, Excerpt):
            break
        offset = part["more"]["go_on"]["offset"]
    assert msgspec.json.decode(read) == value
    params = ScratchpadRead(id=entry, offset=10, length=20)
    part = msgspec.to_builtins(await _read(params, Origin("client")))
    assert (part["text"], part["next_offset"]) == (read[10:30], 30)


def test_without_a_session_nothing_is_cut_unasked() -> None:
    scratchpad.current.set(None)
    value = hits(5_000, 10)
    assert excerpt(SEARCH, QUERY, value, None) is value
    short = excerpt(SEARCH, QUERY, value, 100)
    assert isinstance(short, Excerpt)
    assert "whole" not in short["more"]


IDENTITIES = ("name", "id", "path", "state")

_values = st.one_of(
    st.none(), st.booleans(), st.integers(0, 3), st.just(""), st.just([]), st.just({}), st.text(max_size=40),
    st.text(alphabet="abc ä\n", min_size=200, max_size=3_000), st.lists(st.integers(0, 9), max_size=5),
    st.dictionaries(st.sampled_from("pqr"), st.integers(0, 2), max_size=3),
)  # fmt: skip
_entries = st.fixed_dictionaries(
    {"name": st.text("abcdefgh-", min_size=1, max_size=30), "state": st.sampled_from(["ready", "failed", "stopped"])},
    optional={name: _values for name in ("id", "pid", "queued", "reason", "info", "calls", "note", "memory", "ports")},
)


@given(entries=st.lists(_entries, min_size=1, max_size=60), tokens=st.sampled_from([100, 300, 1000, 2000]))
def test_entries_keep_what_identifies_them_and_lose_empty_values_first(entries: list[Any], tokens: int) -> None:
    pad = Scratchpads().open()
    scratchpad.current.set(pad)
    value = {"version": "1", "services": entries}
    short = excerpt(SEARCH, QUERY, value, tokens)
    if not isinstance(short, Excerpt):
        assert short is value
        return
    shown = short["services"]
    assert shown
    assert len(msgspec.json.encode(short).decode()) <= tokens * 4 + 600
    for entry, whole in zip(shown, entries, strict=False):
        # Entries are left out from the end; those that are shown say which they are.
        for name in IDENTITIES:
            if isinstance(whole.get(name), str) and len(whole[name]) <= 30 and name in whole:
                assert entry[name] == whole[name]
        if entry.keys() < whole.keys():
            # Empty values are left out first.
            assert all(member for name, member in entry.items() if name not in IDENTITIES)
    if len(shown) < len(entries):
        assert f"services: {len(shown)} of {len(entries)} shown" in short["more"]["left_out"][0]


def test_the_status_of_all_services_keeps_their_names_and_states(pad: Scratchpad) -> None:
    service = {
        "state": "ready", "generation": 1, "pid": 4711, "deaths": 0, "reason": "", "retry_at": None, "queued": 0,
        "in_flight": 0, "mode": "", "memory_bytes": 45_678_912, "up_s": 1234.5, "info": {"working": "none"},
        "backlogs": [], "answered_ms": None, "damage": "", "log": "x" * 60, "threads": 5, "cpu_s": 3.25,
    }  # fmt: skip
    status = {"version": "1", "services": [{"name": f"service-{n}", **service} for n in range(21)]}
    short = excerpt(SEARCH, QUERY, status, 1500)
    assert isinstance(short, Excerpt)
    assert [each["name"] for each in short["services"]] == [f"service-{n}" for n in range(21)]
    for each in short["services"]:
        assert (each["state"], each["pid"], each["info"]) == ("ready", 4711, {"working": "none"})
        assert "queued" not in each
