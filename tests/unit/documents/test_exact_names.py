"""A name that a document has means this document only, whatever it looks like."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proto.errors import LinckiaError
from proto.ops.documents.reading import DocumentsGet
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete, DocumentsRestore, DocumentsUpdate
from services.documents.operations.find import DocumentsGrep, DocumentsSearch
from services.documents.operations.listing import DocumentsList
from services.documents.operations.sessions import SessionPin, SessionStart, SessionStop, SessionUnpin
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents, listed, tree

CASES = Path(__file__).parents[4] / "shared/cases/reports/second/cases.json"
NAMES = st.text("a1[]{}*?!\\-~%e\u0301\u00e9A", min_size=1, max_size=6).filter(lambda name: name.strip("-") != "")

TWINS = [
    ("a*", "ab"), ("[a]", "a"), ("a?", "aa"), ("{a,b}", "a"), ("!a", "b"), ("\\*", "*"), ("-f", "f"), ("~", "a"),
    ("%", "a"), ("%41", "A"), ("e\u0301", "\u00e9"), ("a", "A"), ("**", "a"), ("[!b]", "a"), ("a]", "a"), ("[", "a"),
]  # fmt: skip
"""A name, and another one that must not be taken for it."""


async def names(bench: Bench) -> set[str]:
    return {each.name for each in await listed(bench)}


async def touches_only(bench: Bench, name: str, twin: str) -> None:
    await add_text(bench, name, f"one {name}")
    await add_text(bench, twin, f"two {twin}")
    got = await bench.call(DocumentsGet(name=name, include_content=True))
    assert got.content == f"one {name}"
    await bench.call(DocumentsUpdate(name=name, tags=["mine"]))
    assert [each.name for each in await listed(bench, tags=["mine"])] == [name]
    for asked in ({"name": name}, {"path": name}, {"paths": [name]}):
        assert (await bench.call(SessionPin(**asked))).updated == 1
        assert [each.name for each in await listed(bench, tags=["pinned"])] == [name]
        assert (await bench.call(SessionUnpin(**asked))).updated == 1
    assert [each.name for each in (await bench.call(DocumentsList(pattern=name))).documents if each.name == twin] == []
    for asked in ({"name": name}, {"names": [name]}, {"path": name}):
        await add_text(bench, name, f"one {name}")
        done = await bench.call(DocumentsDelete(**asked))
        assert [each.name for each in done.deleted] == [name]
        assert await names(bench) == {twin}
    with pytest.raises(LinckiaError):
        await bench.call(DocumentsGet(name=name))
    await bench.call(DocumentsDelete(name=twin))


@pytest.mark.parametrize(("name", "twin"), TWINS)
async def test_operations_touch_only_the_named_paths(tmp_path: Path, name: str, twin: str) -> None:
    async with documents(tmp_path) as bench:
        await touches_only(bench, name, twin)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(NAMES, NAMES)
@example("notes[1].txt", "notes1.txt")
def test_no_name_touches_another(tmp_path_factory: pytest.TempPathFactory, name: str, twin: str) -> None:
    async def main() -> None:
        async with documents(tmp_path_factory.mktemp("d")) as bench:
            await touches_only(bench, name, twin)

    if unicodedata.normalize("NFC", name) != unicodedata.normalize("NFC", twin):
        trio.run(main)


@pytest.mark.parametrize("case", json.loads(CASES.read_text())["exact_names"] if CASES.exists() else [])
async def test_reported_names(tmp_path: Path, case: dict[str, list[str]]) -> None:
    async with documents(tmp_path) as bench:
        for name in case["stored"]:
            await add_text(bench, name, name)
        await bench.call(DocumentsDelete(name=str(case["delete"])))
        assert await names(bench) == set(case["left"])


async def test_a_name_no_document_has_is_a_glob(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        for name in ("a1", "a2", "b"):
            await add_text(bench, name, name)
        # A deletion may be repeated, and brackets are common in names.
        for name in ("a[0-9]", "[ab]", "notes[1].txt"):
            with pytest.raises(LinckiaError, match="Nothing to delete"):
                await bench.call(DocumentsDelete(name=name))
        assert await names(bench) == {"a1", "a2", "b"}
        await bench.call(DocumentsDelete(name="a[0-9]*"))
        assert await names(bench) == {"b"}


@pytest.mark.parametrize("folder", ["app/[id]", "src/{a}", "x*", "q?", "[...slug]"])
async def test_a_folder_that_looks_like_a_glob_is_searched(tmp_path: Path, folder: str) -> None:
    async with documents(tmp_path) as bench:
        other = folder.replace("[id]", "i").replace("{a}", "a").replace("*", "y").replace("?", "q")
        other = other.replace("[...slug]", "s")
        for place in (folder, other):
            for path in (f"{place}/page.tsx", f"/srv/{place}/page.tsx"):
                await add_text(bench, path, f"a larch at {path}")
        for path in (folder, f"/srv/{folder}"):
            found = await bench.call(DocumentsGrep(pattern="larch", paths=[path]))
            assert {each.file for each in found.matches} <= {f"{folder}/page.tsx", f"/srv/{folder}/page.tsx"}
            assert found.matches
            hits = (await bench.call(DocumentsSearch(query="larch", path=path))).results
            assert {each.path for each in hits} == {each.file for each in found.matches}


async def test_a_restore_of_one_name_restores_one_file(tmp_path: Path) -> None:
    tree(tmp_path / "root/in", {name: name for name in ("notes[1].txt", "notes1.txt", "a*", "ab")})
    async with documents(tmp_path) as bench:
        kept = await bench.call(DocumentsAdd(path=str(tmp_path / "root/in")))
        for number, name in enumerate(("notes[1].txt", "a*", str(tmp_path / "root/in/a*"))):
            out = tmp_path / "root" / str(number)
            await bench.call(
                DocumentsRestore(snapshot_id=kept.snapshot_id, output_directory=str(out), include_patterns=[name])
            )
            assert [each.name for each in out.rglob("*") if each.is_file()] == [name.rpartition("/")[2]]


async def test_a_session_is_found_by_its_id_before_a_label_that_looks_like_it(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        first = await bench.call(SessionStart(label="one"))
        second = await bench.call(SessionStart(label=first.session_id))
        assert (await bench.call(SessionStop(session_id=first.session_id))).label == "one"
        assert (await bench.call(SessionStop(label=first.session_id))).session_id == second.session_id
