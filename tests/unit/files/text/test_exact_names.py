"""A path or name that is given means this entry only, whatever it looks like."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proto.errors import LinckiaError
from services.files.operations.changes import DeleteFiles, MoveFiles, Relocation, RenameFiles, RestoreFiles
from services.files.operations.sets import ResourceSetCreate, ResourceSetDelete, ResourceSetList, ResourceSetModify
from services.files.operations.text import EditFile, FileEdit, GrepFiles, ReadFile, WriteFile
from tests.in_process import Bench
from tests.unit.documents.test_exact_names import TWINS
from tests.unit.files.rig import files_service, index

NAMES = st.text("a1[]{}*?!\\-~% e\u0301\u00e9A$.", min_size=1, max_size=6).filter(lambda name: name.strip(".") != "")


def tree(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in sorted(os.listdir(folder))}


async def touches_only(bench: Bench, root: Path, name: str, twin: str) -> None:
    (root / name).write_text(f"one {name}")
    (root / twin).write_text(f"two {twin}")
    await index(bench, root)
    path, other = str(root / name), {twin: f"two {twin}"}
    assert (await bench.call(ReadFile(path=path))).text == f"one {name}"
    assert [one.path for one in (await bench.call(GrepFiles(pattern="^(one|two)", path=path))).files] == [path]
    await bench.call(EditFile(path=path, edits=[FileEdit(old="one", new="1")]))
    assert tree(root) == {**other, name: f"1 {name}"}
    await bench.call(WriteFile(path=path, content="new", overwrite=True))
    assert tree(root) == {**other, name: "new"}
    for named in (name, twin):
        await bench.call(ResourceSetCreate(name=named))
    await bench.call(ResourceSetModify(name=name, operation="add", paths=[path]))
    sets = (await bench.call(ResourceSetList())).resource_sets
    assert {one.name: one.entry_count for one in sets} == {name: 1, twin: 0}
    await bench.call(ResourceSetDelete(name=name))
    assert [one.name for one in (await bench.call(ResourceSetList())).resource_sets] == [twin]
    await bench.call(ResourceSetDelete(name=twin))
    # A name that is given twice is gone the second time, and its twin is not taken for it.
    gone = await bench.call(DeleteFiles(paths=[path, path]))
    assert [one.status for one in gone.results] == ["success", "error"]
    assert tree(root) == other
    back = await bench.call(RestoreFiles(paths=[path]))
    assert [one.status for one in back.results] == ["success"]
    assert tree(root) == {**other, name: "new"}
    twice = [Relocation(from_=path, to=str(root / "moved")) for _ in range(2)]
    for asked in (RenameFiles(renames=twice), MoveFiles(moves=twice)):
        (root / name).write_text("new")
        done = await bench.call(asked)
        assert [one.status for one in done.results] == ["success", "error"]
        assert tree(root) == {**other, "moved": "new"}
        (root / "moved").unlink()
    (root / twin).unlink()


@pytest.mark.parametrize(("name", "twin"), TWINS)
async def test_operations_touch_only_the_named_paths(tmp_path: Path, name: str, twin: str) -> None:
    (tmp_path / "root").mkdir()
    async with files_service(tmp_path / "data", tmp_path / "root") as bench:
        await touches_only(bench, tmp_path / "root", name, twin)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(NAMES, NAMES)
@example("notes[1].txt", "notes1.txt")
@example("-rf", "rf")
def test_no_name_touches_another(tmp_path_factory: pytest.TempPathFactory, name: str, twin: str) -> None:
    async def main() -> None:
        folder = tmp_path_factory.mktemp("f")
        (folder / "root").mkdir()
        async with files_service(folder / "data", folder / "root") as bench:
            await touches_only(bench, folder / "root", name, twin)

    if name != twin and "moved" not in (name, twin):
        trio.run(main)


async def test_a_name_that_matches_two_other_unicode_forms_is_ambiguous(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    forms = ["\u1ebf", "\u00ea\u0301", "e\u0302\u0301"]
    assert len({unicodedata.normalize("NFC", form) for form in forms}) == 1
    for form in forms[:2]:
        (root / form).write_text(form)
    async with files_service(tmp_path / "data", root) as bench:
        gone = await bench.call(DeleteFiles(paths=[str(root / forms[2])]))
        assert [one.status for one in gone.results] == ["error"]
        with pytest.raises(LinckiaError, match="not found"):
            await bench.call(EditFile(path=str(root / forms[2]), edits=[FileEdit(old=forms[0], new="x")]))
        assert tree(root) == {form: form for form in sorted(forms[:2])}
        await bench.call(DeleteFiles(paths=[str(root / forms[0])]))
        # The only one left has the name, in the form in which it is stored.
        assert (await bench.call(ReadFile(path=str(root / forms[2])))).text == forms[1]
