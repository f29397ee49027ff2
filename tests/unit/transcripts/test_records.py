"""Files are read in parts, from where reading stopped before, and come to the same records however large the parts."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.transcripts.records import MAX_RECORD_BYTES, Part, TooLong, parts

ITEMS: list[Any] = [
    {"a": 'quote " and brace ] } , \\'},
    {"b": [1, {"c": "ü\u2028"}]},
    {"d": "x" * 300},
    {"e": ""},
    {"f": "[{]}"},
]


def read_parts(path: Path, position: int, tail: str, **limits: int) -> Iterator[Part]:
    with path.open("rb") as file:
        yield from parts(file, position, tail, **limits)


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_element_by_element_whatever_the_size_of_a_part(
    tmp_path: Path, size: int, indent: int | None
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ITEMS, indent=indent, ensure_ascii=False) + "\n")
    read = list(read_parts(path, 0, "", part_bytes=size))
    assert [json.loads(record) for part in read for record in part.records] == ITEMS
    assert [part.start for part in read] == [0, *(part.position for part in read[:-1])]
    assert read[-1].final
    assert read[-1].position == path.stat().st_size
    # Reading can resume after any part and yields the rest.
    for index, part in enumerate(read[:-1]):
        rest = [record for later in read[index + 1 :] for record in later.records]
        assert [
            record for again in read_parts(path, part.position, part.tail, part_bytes=size) for record in again.records
        ] == rest
    assert not list(read_parts(path, read[-1].position, read[-1].tail, part_bytes=size))


@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_lines_are_read_from_where_reading_stopped(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS) + "\n")
    read = list(read_parts(path, 0, "", part_bytes=size))
    assert [json.loads(record) for part in read for record in part.records] == ITEMS
    assert not list(read_parts(path, read[-1].position, read[-1].tail, part_bytes=size))
    with path.open("a") as file:
        file.write('{"g": 1}')
    (more,) = read_parts(path, read[-1].position, read[-1].tail, part_bytes=size)
    assert (more.records, more.final, more.position) == (['{"g": 1}'], True, path.stat().st_size)


def test_a_broken_last_line_is_left_for_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"b": "ha')
    (first,) = read_parts(path, 0, "")
    assert (first.records, first.position, first.final, first.incomplete) == (['{"a": 1}\n'], 9, True, True)
    path.write_text('{"a": 1}\n{"b": "half"}\n')
    (rest,) = read_parts(path, first.position, first.tail)
    assert rest.records == ['{"b": "half"}\n']


def test_a_file_that_was_rewritten_is_read_again_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    (first,) = read_parts(path, 0, "")
    path.write_text('{"b": 1}\n{"c": 1}\n')
    (again,) = read_parts(path, first.position, first.tail)
    assert (again.start, len(again.records)) == (0, 2)
    path.write_text("{}\n")
    (again,) = read_parts(path, again.position, again.tail)
    assert (again.start, len(again.records)) == (0, 1)


def test_a_document_is_one_record_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"messages": ITEMS}, indent=1))
    (part,) = read_parts(path, 0, "")
    assert json.loads(part.records[0]) == {"messages": ITEMS}
    assert not list(read_parts(path, part.position, part.tail))
    path.write_text(json.dumps({"messages": [*ITEMS, {}]}, indent=1))
    (part,) = read_parts(path, part.position, part.tail)
    assert part.start == 0


def test_a_record_that_is_too_long_is_cut_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    (part,) = read_parts(path, 0, "", max_record_bytes=100)
    start, size = (len("".join(json.dumps(item) + "\n" for item in ITEMS[:number])) for number in (2, 3))
    cut = {"d": f"{'x' * 12} [288 bytes left out]"}
    assert [json.loads(record) for record in part.records] == [*ITEMS[:2], cut, *ITEMS[3:]]
    assert part.too_long == (TooLong(start, size - start, is_cut=True),)


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "long", ["x" * 300, '\\"]},[{' * 60, ["y" * 90, {"z": "w" * 90}] * 9, [[[1]]] * 99, "\\" * 151],
    ids=["string", "escapes", "lists", "numbers", "backslashes"],
)  # fmt: skip
def test_an_element_that_is_too_long_costs_no_other_and_no_memory(
    tmp_path: Path, size: int, indent: int | None, long: Any
) -> None:
    path = tmp_path / "a.json"
    items = [{"a": 1}, {"long": long}, {"b": "]"}, {"long": long}]
    path.write_text(json.dumps(items, indent=indent))
    read = list(read_parts(path, 0, "", part_bytes=size, max_record_bytes=100))
    records = [json.loads(record) for part in read for record in part.records]
    is_text = isinstance(long, str)
    assert [record for record in records if "long" not in record] == [items[0], items[2]]
    # Numbers cannot be cut.
    cut = [record["long"] for record in records if "long" in record]
    assert len(cut) == (2 if is_text else 0)
    for each in cut:
        begins, _, rest = each.partition(" [")
        assert long.startswith(begins)
        assert begins
        assert rest.endswith(" bytes left out]")
    skipped = [each for part in read for each in part.too_long]
    text = path.read_text()
    first = skipped[0]
    assert json.loads(text[first.start : first.start + first.size].strip(" ,\n")) == items[1]
    assert ([each.is_cut for each in skipped], read[-1].position) == ([is_text] * 2, path.stat().st_size)
    for index, part in enumerate(read[:-1]):
        again = list(read_parts(path, part.position, part.tail, part_bytes=size, max_record_bytes=100))
        assert [each for one in again for each in one.records] == [
            each for one in read[index + 1 :] for each in one.records
        ]


def test_a_document_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"messages": ITEMS}, indent=1))
    (part,) = read_parts(path, 0, "", max_record_bytes=100)
    assert (part.records, part.too_long, part.final) == ([], (TooLong(0, path.stat().st_size),), True)
    assert not list(read_parts(path, part.position, part.tail, max_record_bytes=100))


def test_a_file_of_many_megabytes_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = json.dumps({"a": "x" * 1_000_000}).encode() + b"\n"
    with path.open("wb") as file:
        file.writelines(line for _ in range(70))
        file.write(b'{"b": "')
        file.writelines(b"y" * 1_000_000 for _ in range(70))
        file.write(b'"}\n{"c": 1}\n')
    tracemalloc.start()
    try:
        count = 0
        skipped: list[TooLong] = []
        for part in read_parts(path, 0, ""):
            count += len(part.records)
            skipped += part.too_long
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (count, skipped) == (72, [TooLong(70 * len(line), 70_000_010, is_cut=True)])
    assert most < 3 * MAX_RECORD_BYTES


def test_an_empty_file_has_no_records_and_invalid_bytes_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    assert not list(read_parts(path, 0, ""))
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xff"}\n')
    assert list(read_parts(path, 0, "")) == [
        Part(0, path.stat().st_size, next(iter(read_parts(path, 0, ""))).tail, ['{"a": "\ufffd"}\n'], True)
    ]
