"""`files_grep` compared with ripgrep on the same files: seconds, their ratio, and whether the results agree.

    scripts/bench grep_files [--gigabytes 1] [--folder DIR] [--runs 3]

The files are copies of this environment's sources (`site-packages`), with a `.gitignore`, in a kernel's only root. Both
read them from the page cache, and each search returns all results: lines with their numbers, or the number of lines per
file for text that is in every file. ripgrep must be installed (Debian's `ripgrep`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.parts.programs import require
from tests.system.running import RunningKernel, running

SUFFIXES = frozenset({".py", ".pyi", ".h", ".hpp", ".md", ".rst", ".txt", ".json", ".js", ".c", ".cpp"})
IGNORE = "*.pyc\nbuild/\n/dist\ndocs/_build/\n*.md\n!README.md\n"
WANTED = 0.5


class Search(NamedTuple):
    """A search, with the request for each program."""

    what: str
    ours: dict[str, Any]
    theirs: list[str]


SEARCHES = (
    Search("rare literal", {"pattern": "quarantine_budget_xyz"}, ["quarantine_budget_xyz"]),
    Search("some literal", {"pattern": "NotImplementedError"}, ["NotImplementedError"]),
    Search("common word, counted", {"pattern": "self", "count": True}, ["-c", "self"]),
    Search("regex with a class", {"pattern": r"def [a-z_]+_handler\("}, [r"def [a-z_]+_handler\("]),
    Search("regex in many lines", {"pattern": r"raise [A-Z][a-z]+Error\("}, [r"raise [A-Z][a-z]+Error\("]),
    Search("regex, nothing literal", {"pattern": r"[0-9]{3}-[0-9]{4}-[0-9]{4}"}, [r"[0-9]{3}-[0-9]{4}-[0-9]{4}"]),
    Search("any case", {"pattern": "deprecationwarning", "ignore_case": True}, ["-i", "deprecationwarning"]),
    Search("no match", {"pattern": "no such text in any file"}, ["no such text in any file"]),
)


def make(folder: Path, wanted: int) -> tuple[int, int]:
    """Copy sources until they have `wanted` bytes. Returns the number of files and bytes."""
    source = Path(sysconfig.get_path("purelib"))
    texts = [path for path in sorted(source.rglob("*")) if path.suffix in SUFFIXES and path.is_file()]
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text(IGNORE)
    count = size = copy = 0
    while size < wanted:
        for path in texts:
            target = folder / f"copy{copy}" / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            count, size = count + 1, size + target.stat().st_size
            if size >= wanted:
                break
        copy += 1
    return count, size


def ours(kernel: RunningKernel, asked: dict[str, Any]) -> tuple[float, set[tuple[str, int, str]]]:
    """Return the seconds and all results: path, line and text, or path and count."""
    began = time.perf_counter()
    found = kernel.call("files_grep", {**asked, "limit": 1_000_000})
    took = time.perf_counter() - began
    pages = [found]
    while cursor := pages[-1].get("next_cursor"):
        began = time.perf_counter()
        pages.append(kernel.call("files_grep", {**asked, "limit": 1_000_000, "cursor": cursor}))
        took += time.perf_counter() - began
    files = [file for page in pages for file in page["files"]]
    if asked.get("count"):
        return took, {(file["path"], file["count"], "") for file in files}
    return took, {(file["path"], line["line"], line["text"]) for file in files for line in file["matches"]}


def theirs(folder: Path, arguments: list[str]) -> tuple[float, set[tuple[str, int, str]]]:
    """Search with ripgrep, with the same result."""
    command = ["rg", "--no-config", "--no-heading", "--color=never", "-n", *arguments, str(folder)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    took = time.perf_counter() - began
    found = set()
    for line in done.stdout.split(b"\n"):
        if not line or line.startswith(b"WARNING"):
            continue
        path, _, rest = line.decode("utf-8", "replace").partition(":")
        number, _, text = rest.partition(":")
        found.add((path, int(number), text.removesuffix("\r")))
    return took, found


def same(one: set[tuple[str, int, str]], other: set[tuple[str, int, str]]) -> bool:
    """Return True if both found the same lines; our text of a long line is a part of it."""
    if {found[:2] for found in one} != {found[:2] for found in other}:
        return False
    texts = {found[:2]: found[2] for found in other}
    return all(found[2].strip("…") in texts[found[:2]] for found in one)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    require("rg")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name) / "files"
        folder.mkdir()
        count, size = make(folder, int(arguments.gigabytes * 1e9))
        print(f"{count} files, {size / 1e9:.2f} GB")
        slow = []
        with running(Path(name) / "data", [folder], services=["files", "compare"]) as kernel:
            for search in SEARCHES:
                rows = []
                for _ in range(arguments.runs):
                    one, other = ours(kernel, search.ours), theirs(folder, search.theirs)
                    rows.append((one[0], other[0]))
                us, them = (statistics.median(row[side] for row in rows) for side in (0, 1))
                equal = same(one[1], other[1])
                if not equal or them / us < WANTED:
                    slow.append(search.what)
                print(
                    f"{search.what:24} files_grep {us:6.2f} s   rg {them:6.2f} s   {them / us:5.2f} of its speed"
                    f"   {len(one[1]):7} found, {'the same' if equal else f'NOT THE SAME: {len(other[1])}'}"
                )
        print(json.dumps({"slower than half of ripgrep's speed, or different results": slow}))


if __name__ == "__main__":
    main()
