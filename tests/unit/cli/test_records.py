"""Files are read in parts, from where reading stopped before, and come to the same records however large the parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linckia.proto.records import Part, parts

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
    # From any part on, the rest.
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


def test_a_record_that_is_too_long_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    (part,) = read_parts(path, 0, "", max_record_bytes=100)
    assert ([json.loads(record) for record in part.records], part.too_long) == ([*ITEMS[:2], *ITEMS[3:]], 1)
    path.write_text(json.dumps(ITEMS))
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        list(read_parts(path, 0, "", max_record_bytes=100))


def test_an_empty_file_has_no_records_and_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    assert not list(read_parts(path, 0, ""))
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xff"}\n')
    assert list(read_parts(path, 0, "")) == [
        Part(0, path.stat().st_size, next(iter(read_parts(path, 0, ""))).tail, ['{"a": "\ufffd"}\n'], True)
    ]
