"""Edits are made where they are asked for, and a file that is replaced keeps its form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import LinckiaError
from services.files.operations.text import Edited, EditFile, FileEdit, WriteFile, Written
from services.files.text.editing import edited
from tests.in_process import Bench
from tests.unit.files.rig import files_service

CASES = Path(__file__).parents[5] / "shared/cases/reports/second/cases.json"
TEN = "".join(f"{n}\n" for n in range(1, 11))


def reported(key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(CASES.read_text())[key] if CASES.exists() else []
    return found


def lines(where: str, new: str) -> dict[str, str]:
    return {"lines": where, "new": new}


@pytest.mark.parametrize(
    "case",
    [
        *reported("edit_file_lines"),
        # Lines counted from the end, deleted and added lines, and edits after a text edit that lengthens earlier lines.
        {"before": TEN, "edits": [lines("9-10", "end\n"), lines("1", "a\nb\n")],
         "after": "a\nb\n" + TEN[2:-5] + "end\n"},
        {"before": TEN, "edits": [{"old": "1\n2", "new": "1\nx\ny\n2"}, lines("4", "D\n")],
         "after": "1\nx\ny\n2\n3\nD\n" + TEN[8:]},
        {"before": TEN, "edits": [lines("4", "D\n"), {"old": "2\n3\n", "new": ""}], "after": "1\nD\n" + TEN[8:]},
        {"before": "one\ntwo\n", "edits": [lines("1", "two\n"), {"old": "two", "new": "2"}], "after": "two\n2\n"},
        {"before": "a\nb", "edits": [lines("2", "c"), lines("1", "")], "after": "c"},
        {"before": TEN, "edits": [lines("3", "x\n"), lines("3", "y\n")], "refused": "edits[1].lines"},
        {"before": TEN, "edits": [lines("2-4", "x\n"), {"old": "3\n", "new": "z\n"}], "refused": "edits[1].old"},
        {"before": TEN, "edits": [{"old": "3\n", "new": "z\n"}, lines("2-4", "x\n")], "refused": "edits[0].old"},
        {"before": TEN, "edits": [lines("5-", "x\n"), lines("-5", "y\n")], "refused": "overlap"},
    ],
)  # fmt: skip
def test_lines_are_those_of_the_file_as_it_was(case: dict[str, Any]) -> None:
    edits = [FileEdit(**each) for each in case["edits"]]
    if "refused" in case:
        with pytest.raises(LinckiaError, match=case["refused"].replace("[", r"\[").replace("]", r"\]")):
            edited(case["before"], edits)
    else:
        assert edited(case["before"], edits)[0] == case["after"]


@given(st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=8), st.data())
def test_edits_of_lines_do_what_the_same_edits_do_in_a_list(before: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.permutations(range(len(before))))[: data.draw(st.integers(1, len(before)))]
    new = {at: data.draw(st.sampled_from([[], ["x"], ["x", "", "y"]])) for at in chosen}
    edits = [FileEdit(lines=str(at + 1), new="".join(f"{line}\n" for line in new[at])) for at in chosen]
    expected = [line for at, own in enumerate(before) for line in new.get(at, [own])]
    assert edited("".join(f"{line}\n" for line in before), edits)[0] == "".join(f"{line}\n" for line in expected)


@pytest.mark.parametrize(
    ("text", "old", "said"),
    [
        ("a\nb\u00a0= 1\n", "b = 1", "line 2 has '\\xa0' (U+00A0, NO-BREAK SPACE) where `old` has a space"),
        ("a\n\tb = 1\n", "a\n    b = 1", "line 2 has a tab where `old` has a space"),
        ("say \u201chello\u201d\n", 'say "hello"', "U+201C"), ("1\u20132\n", "1-2", "EN DASH"),
        ("Donau\u00addampf\n", "Donaudampf", "line 1 has an invisible"),
        ("Cafe\u0301 open\n", "Caf\u00e9 open", "line 1 has its accented letters in the form NFD"),
        ("if x:\n  y()\n", "if x:\n      y()", "line 2 has 'y' (U+0079, LATIN SMALL LETTER Y) where `old` has a space"),
    ],
)  # fmt: skip
def test_an_error_for_a_missing_text_shows_the_first_differing_character(text: str, old: str, said: str) -> None:
    with pytest.raises(LinckiaError) as refused:
        edited(text, [FileEdit(old=old, new="")])
    assert said in str(refused.value)


def test_line_ends_of_the_text_to_replace_need_not_be_those_of_the_file() -> None:
    assert edited("a\nb\nc\n", [FileEdit(old="a\r\nb\r\n", new="x\r\ny\r\n")])[0] == "x\ny\nc\n"


async def write(bench: Bench, path: Path, content: str, **asked: Any) -> Written:
    return await bench.call(WriteFile(path=str(path), content=content, **asked))


@pytest.mark.parametrize(
    "case",
    [
        *(each for each in reported("overwriting_keeps") if each["tool"] == "files_write"),
        {"before_hex": "fffe", "encoding": "utf-16-le", "before": "eins ä\n", "content": "zwei ö\n"},
        {"before_hex": "", "encoding": "cp1252", "before": "<!-- coding: cp1252 -->\nGrüße aus Köln\n",
         "content": "<!-- coding: cp1252 -->\nStraße\n"},
        {"before_hex": "", "encoding": "cp1250", "before": "# coding: cp1250\nPříliš žluťoučký kůň\n",
         "content": "# coding: cp1250\nďábelské ódy\n"},
        {"before_hex": "", "encoding": "utf-8", "before": "a\r\nb\r\n", "content": "c\nd\n"},
    ],
)  # fmt: skip
async def test_a_file_that_is_replaced_keeps_its_form(tmp_path: Path, case: dict[str, Any]) -> None:
    mark = bytes.fromhex(case["before_hex"])
    ends = "\r\n" if "\r\n" in case["before"] else "\n"
    root = tmp_path / "root"
    root.mkdir()
    async with files_service(tmp_path / "data", root) as bench:
        file = root / "a.txt"
        file.write_bytes(mark + case["before"].encode(case["encoding"]))
        done = await write(bench, file, case["content"], overwrite=True)
        assert file.read_bytes() == mark + case["content"].replace("\n", ends).encode(case["encoding"])
        assert (done.kept != "") is (bool(mark) or ends != "\n" or case["encoding"] != "utf-8")
        again = await write(bench, file, case["content"], overwrite=True)
        assert not again.changed
        assert again.hash == done.hash
        # A form that is asked for is kept to.
        done = await write(bench, file, "plain \u4f60\n", overwrite=True, encoding="utf-8")
        assert (file.read_bytes(), done.kept) == ("plain \u4f60\n".encode(), "")


async def test_content_that_the_form_cannot_hold_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with files_service(tmp_path / "data", root) as bench:
        file = root / "a.txt"
        before = "# coding: cp1252\nGrüße\n".encode("cp1252")
        file.write_bytes(before)
        with pytest.raises(LinckiaError, match=r"'你' cannot be encoded in cp1252.*`encoding` utf-8 changes"):
            await write(bench, file, "你\n", overwrite=True)
        assert file.read_bytes() == before
        with pytest.raises(LinckiaError, match="no such encoding"):
            await write(bench, file, "x", overwrite=True, encoding="rot13")
        binary = root / "b.bin"
        binary.write_bytes(b"\0\1\2")
        assert (await write(bench, binary, "text\r\n", overwrite=True)).kept == ""
        assert binary.read_bytes() == b"text\r\n"


async def test_a_file_is_edited_in_the_encoding_that_is_named(tmp_path: Path) -> None:
    async def edit(path: Path, encoding: str, old: str, new: str) -> Edited:
        return await bench.call(EditFile(path=str(path), edits=[FileEdit(old=old, new=new)], encoding=encoding))

    root = tmp_path / "root"
    root.mkdir()
    async with files_service(tmp_path / "data", root) as bench:
        file = root / "a.txt"
        for encoding in ("cp1250", "koi8_r", "utf-16-le", "shift_jis"):
            text = {"cp1250": "žluť", "koi8_r": "привет", "utf-16-le": "ß", "shift_jis": "日本"}[encoding]
            file.write_bytes(f"{text}: old\r\nx\r\n".encode(encoding))
            await edit(file, encoding, "old", text)
            assert file.read_bytes() == f"{text}: {text}\r\nx\r\n".encode(encoding)
        file.write_bytes(b"\xfe\xff" + "old".encode("utf-16-be"))
        await edit(file, "utf-16", "old", "new")
        assert file.read_bytes() == b"\xfe\xff" + "new".encode("utf-16-be")
        file.write_bytes("old".encode("utf-16-le"))
        with pytest.raises(LinckiaError, match="saving the file as utf-16"):
            await edit(file, "utf-16", "old", "new")
