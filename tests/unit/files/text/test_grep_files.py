"""`files_grep`: ripgrep's rules, bounded answers with cursors to continue, and the same matches for every worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from proto.errors import InvalidParams
from services.files.index.comparing import open_service as open_compare
from services.files.main import open_service
from services.files.operations.text import GrepFiles, GrepFound, GrepPart, Piece
from services.files.text import grep, searching, walking
from services.shared.ignore_files import rules_from
from tests.in_process import Bench, services_in_process
from tests.unit.files.rig import files_service

BOTH = {"files": open_service, "compare": open_compare}


def put(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


async def names(bench: Bench, root: Path, pattern: str = "needle", **asked: Any) -> list[str]:
    """Below the root, the files in which it is found."""
    found = await bench.call(GrepFiles(pattern=pattern, path=str(root), **asked))
    return [below(file.path, root) for file in found.files]


def below(path: str, root: Path) -> str:
    return os.path.relpath(path, root)


RULES: dict[str, str | bytes] = {
    ".git/config": "needle", ".git/info/exclude": "excluded.txt\n",
    ".gitignore": "*.log\nbuild/\n/top.txt\n!keep.log\n", "a.log": "needle", "keep.log": "needle",
    "top.txt": "needle", "sub/top.txt": "needle", "build/x.txt": "needle", "sub/build/y.txt": "needle",
    "sub/.gitignore": "!b.log\ninner.txt\n", "sub/b.log": "needle", "sub/inner.txt": "needle", "inner.txt": "needle",
    "excluded.txt": "needle", ".hidden": "needle", ".dot/file": "needle", "plain.txt": "needle\nno\nneedle two\n",
    ".ignore": "special/\n!.shown\n", "special/z.txt": "needle", ".shown": "needle", "new\nline.log": "needle",
    "other/.git/HEAD": "needle", "other/c.log": "needle", "binary": b"needle\0", "none.txt": "nothing",
    "sub/.rgignore": "!deep.log\n", "sub/deep.log": "needle",
}  # fmt: skip


@pytest.mark.parametrize("size", [0, 1 << 18])
async def test_a_line_ends_before_its_carriage_return(tmp_path: Path, size: int) -> None:
    root = tmp_path / "root"
    filler = "x" * 78 + "\r\n"
    put(root, {"a.txt": "the end\r\nend of\r\n" + filler * (size // 80) + "last end\r\nend", "b.txt": "end \n"})
    last = 3 + size // 80
    async with files_service(tmp_path / "data", root) as bench:

        async def lines(pattern: str) -> list[int]:
            found = await bench.call(GrepFiles(pattern=pattern, path=str(root)))
            return [match.line for file in found.files for match in file.matches]

        assert await lines("end$") == [1, last, last + 1]
        assert await lines("(e|E)nd.$") == [1]
        assert await lines("d\\r$") == [1, last]
        counted = await bench.call(GrepFiles(pattern="end$", path=str(root), count=True))
        assert [file.count for file in counted.files] == [3]


async def test_a_folder_that_is_named_is_searched_though_it_is_ignored(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, {
        ".git/config": "", ".gitignore": "node_modules/\nbuild\n*.log\n/out/**\n", ".ignore": "vendor\n",
        "node_modules/pkg/index.js": "needle", "node_modules/pkg/a.log": "needle", "build/lib/x.c": "needle",
        "node_modules/pkg/.gitignore": "dist\n", "node_modules/pkg/dist/d.js": "needle", "vendor/v.go": "needle",
        "out/o.txt": "needle", "out/deep/o.txt": "needle", "src/build/y.c": "needle", "src/s.c": "needle",
    })  # fmt: skip
    async with files_service(tmp_path / "data", root) as bench:
        assert await names(bench, root) == ["src/s.c"]
        for folder, expected in (
            ("node_modules/pkg", ["index.js"]), ("node_modules", ["pkg/index.js"]), ("build", ["lib/x.c"]),
            ("build/lib", ["x.c"]), ("vendor", ["v.go"]), ("src/build", ["y.c"]), ("src", ["s.c"]),
            ("out/deep", ["o.txt"]), ("node_modules/pkg/dist", ["d.js"]),
        ):  # fmt: skip
            assert await names(bench, root / folder) == expected, folder


async def test_files_that_ripgrep_skips_are_skipped(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, RULES)
    (root / "link.txt").symlink_to("plain.txt")
    shown = [".shown", "inner.txt", "keep.log", "plain.txt", "other/c.log", "sub/b.log", "sub/deep.log", "sub/top.txt"]
    async with files_service(tmp_path / "data", root) as bench:
        assert await names(bench, root) == shown
        # Rules of parent folders also apply to a search that starts below them.
        assert await names(bench, root / "sub") == ["b.log", "deep.log", "top.txt"]
        every = {name for name in RULES if name not in ("binary", "none.txt") and "ignore" not in name}
        assert set(await names(bench, root, no_ignore=True, hidden=True)) == every - {".git/info/exclude"}
        assert set(await names(bench, root, hidden=True)) == {
            *shown, ".hidden", ".dot/file", ".git/config", "other/.git/HEAD"
        }  # fmt: skip
        # A glob overrides all other rules; a file named in the request is always searched.
        assert await names(bench, root, glob="*.log") == ["a.log", "keep.log", "new\nline.log", "other/c.log",
                                                          "sub/b.log", "sub/deep.log"]  # fmt: skip
        assert await names(bench, root, glob="*.{txt,log} !sub/** !a.*") == [
            "excluded.txt", "inner.txt", "keep.log", "new\nline.log", "plain.txt", "top.txt", "other/c.log"
        ]  # fmt: skip
        assert await names(bench, root / "a.log") == ["."]
        outside = tmp_path / "outside"
        put(outside, {".gitignore": "*.log\n", "x.log": "needle"})
    async with files_service(tmp_path / "data2", outside) as bench:
        # A `.gitignore` outside a repository is not applied.
        assert await names(bench, outside) == ["x.log"]


def test_the_combined_lookup_of_ignored_names_misses_none() -> None:
    rules = rules_from(["*.log\n/dist\ndocs/_build/\n!a.b\n"], rules_from(["/sub/x*\n"], None, 0), 4)
    named = {"y.log", "dist", "dist/", "a.b", "xy"}
    for name in (*named, "dists", "log", "_build/", "ä", "b"):
        expected = rules.verdict(f"sub/{name.rstrip('/')}", is_folder=name[-1] == "/") is not None
        assert rules.touches("sub/", ["o", name, "p/"]) == expected == (name in named)
    assert rules.touches("sub/docs/", ["_build/"])
    assert rules.touches("sub/", ["new\nline"])


async def test_lines_have_numbers_and_context(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, {
        "a.txt": "one\ntwo Needle\r\nthree\nneedle", "b.txt": "needle ü\n".encode("utf-16"),
        "c.txt": "x" * 5_000 + "needle" + "y" * 5_000, "d.txt": b"\xef\xbb\xbfneedle\n\xff bad",
    })  # fmt: skip
    async with files_service(tmp_path / "data", root) as bench:
        found = await bench.call(GrepFiles(pattern="needle", ignore_case=True, context=1))
        a, b, c, d = found.files
        assert [(each.line, each.text, each.before, each.after) for each in a.matches] == [
            (2, "two Needle", ("one",), ("three",)), (4, "needle", ("three",), ()),
        ]  # fmt: skip
        assert b.matches[0].text.endswith("needle ü")
        assert len(c.matches[0].text) < 600
        assert "needle" in c.matches[0].text
        assert c.matches[0].text[0] == c.matches[0].text[-1] == "…"
        assert (d.matches[0].text, d.matches[0].line) == ("needle", 1)
        starts = await bench.call(GrepFiles(pattern="^needle", path=str(root / "d.txt")))
        assert [each.text for each in starts.files[0].matches] == ["needle"]
        for pattern, lines in (("^$", []), ("e$", [1, 2, 3, 4]), ("e*", [1, 2, 3, 4]), ("n(e|x)+d", [4])):
            found = await bench.call(GrepFiles(pattern=pattern, path=str(root / "a.txt")))
            shown = [each.line for file in found.files for each in file.matches]
            assert shown == lines, pattern
        counted = await bench.call(GrepFiles(pattern="n|e", path=str(root / "a.txt"), count=True))
        assert counted.files[0].count == 4


async def test_a_long_file_is_read_in_windows_that_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "FIRST_READ", 16)
    monkeypatch.setattr(searching, "WINDOW", 32)
    root = tmp_path / "root"
    lines = [f"{n} needle" if n % 3 == 0 else f"{n}" * (n % 7) for n in range(200)]
    put(root, {"a.txt": "\n".join(lines), "b.bin": "\n".join(lines).encode() + b"\0", "c.txt": "z" * 500 + "needle"})
    async with files_service(tmp_path / "data", root) as bench:
        for context in (0, 2):
            found = await bench.call(GrepFiles(pattern=r"need\w", context=context))
            assert [os.path.basename(file.path) for file in found.files] == ["a.txt", "c.txt"]
            hits = [n for n in range(len(lines)) if n % 3 == 0]
            expected = [(n + 1, lines[n], tuple(lines[max(0, n - context) : n])) for n in hits]
            assert [(each.line, each.text, each.before) for each in found.files[0].matches] == expected[:100]
            assert found.binary == 1
        counted = await bench.call(GrepFiles(pattern="needle", count=True))
        assert [file.count for file in counted.files] == [67, 1]


@pytest.mark.parametrize("kinds", [{"files_with_matches": True}, {"count": True}, {}])
async def test_pages_add_up_to_the_full_result(tmp_path: Path, kinds: dict[str, bool]) -> None:
    root = tmp_path / "root"
    for folder in ("a-b", "a", "a/b", "c"):
        put(root, {f"{folder}/{n}.txt": "needle\n" * (n + 1) for n in range(4)})
    async with files_service(tmp_path / "data", root) as bench:
        asked = structs.replace(GrepFiles(pattern="needle", limit=1_000), **kinds)
        whole = [found for file in (await bench.call(asked)).files for found in parts(file)]
        for limit in (1, 3, 7):
            pages: list[Any] = []
            cursor = ""
            while True:
                found = await bench.call(structs.replace(asked, limit=limit, cursor=cursor))
                pages += [part for file in found.files for part in parts(file)]
                cursor = found.next_cursor
                assert (found.truncated == "limit") == bool(cursor)
                if not cursor:
                    break
            assert pages == whole


def parts(file: Any) -> list[Any]:
    return [(file.path, each.line) for each in file.matches] or [(file.path, file.count)]


async def test_another_process_finds_what_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    put(root, {f"{n // 40}/{n}.txt": f"needle {n}\n" for n in range(400)})
    monkeypatch.setattr(walking, "FIRST_FILES", 8)
    monkeypatch.setattr(walking, "MAX_FILES", 16)
    found: list[GrepFound] = []
    async with services_in_process(BOTH, tmp_path / "data", roots=[root]) as bench:
        found.append(await bench.call(GrepFiles(pattern="needle", limit=1_000)))
        await bench.stop("compare")
        found.append(await bench.call(GrepFiles(pattern="needle", limit=1_000)))
        await bench.stop("files")
    assert found[0] == found[1]
    assert sum(len(file.matches) for file in found[0].files) == found[0].searched == 400


async def test_a_line_that_is_too_long_for_memory_is_looked_through_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("FIRST_READ", 16), ("WINDOW", 32), ("MAX_LINE", 64)):
        monkeypatch.setattr(searching, name, size)
    root = tmp_path / "root"
    put(root, {"a.txt": "x" * 1_000 + " needle " + "y" * 1_000 + "\nneedle\n"})
    longest = 0
    windows = searching._windows

    def watched(descriptor: int, head: bytes, context: int) -> Iterator[searching.Window]:
        nonlocal longest
        for window in windows(descriptor, head, context):
            longest = max(longest, len(window.data))
            yield window

    monkeypatch.setattr(searching, "_windows", watched)
    async with files_service(tmp_path / "data", root) as bench:
        found = await bench.call(GrepFiles(pattern="needle"))
        assert found.files[0].matches[-1].line == 2
        assert longest < 150


async def test_a_search_that_takes_too_long_says_so_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    put(root, {f"{n:02}.txt": "needle\n" for n in range(40)})
    monkeypatch.setattr(walking, "FIRST_FILES", 8)
    real = searching.search

    def endless(roots: Any, how: Any, piece: Piece, most: int, go_on: Callable[[], None] | None = None) -> GrepPart:
        while piece[0][1][0] == "24.txt":
            assert go_on is not None
            go_on()
        return real(roots, how, piece, most, go_on)

    async with files_service(tmp_path / "data", root) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(grep, "search", endless)
            patch.setattr(grep, "TIME_LIMIT_S", 0.3)
            first = await bench.call(GrepFiles(pattern="needle"))
        assert first.truncated == "time"
        rest = await bench.call(GrepFiles(pattern="needle", cursor=first.next_cursor))
        assert rest.truncated == ""
        both = [below(file.path, root) for file in (*first.files, *rest.files)]
        assert both == [f"{n:02}.txt" for n in range(40)]


async def called(bench: Bench, params: GrepFiles) -> GrepFound:
    params.check()
    return await bench.call(params)


async def test_bad_input_names_the_field(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, {"a.txt": "needle"})
    bad: tuple[tuple[str, dict[str, Any]], ...] = (
        ("pattern", {"pattern": "(x"}), ("pattern", {"pattern": "a\nb"}), ("pattern", {"pattern": r"(?=x)"}),
        ("path", {"path": "/etc"}), ("path", {"path": "relative"}), ("path", {"path": str(root / "nowhere")}),
        ("cursor", {"cursor": "x"}), ("context", {"context": 51}), ("glob", {"glob": "{a,b}" * 8}),
    )  # fmt: skip
    async with files_service(tmp_path / "data", root) as bench:
        for field, asked in bad:
            with pytest.raises(InvalidParams) as refused:
                await called(bench, GrepFiles(**{"pattern": "needle", **asked}))
            assert refused.value.failure.field == field, asked
