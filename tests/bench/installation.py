"""What Linckia costs and how fast it is on this machine: scripts/bench installation [--json] [--notes N] [--files N].

It measures a kernel of its own, with its own data directory and generated files in a temporary folder, and removes them
at the end. A kernel that is running already is not touched, but shares the processors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from kernel import VERSION
from proto.control.client import Client, ControlError
from proto.control.commands import Failed
from proto.control.terminal import complain, duration, show_json, show_table, size
from proto.host import extras, models
from proto.json_types import JsonObject
from proto.names import module

NOTES, FILES = 1_000, 10_000
SEARCHES = 200
WORDS_A_NOTE = 150
START_TIMEOUT_S = 60.0
INDEX_TIMEOUT_S = 900.0
REST_AFTER_S = 3
RESTS_WITHIN_S = 60.0
POLL_S = 0.05
SOON = {"LINCKIA_REST_AFTER_S": str(REST_AFTER_S), "LINCKIA_SERVICES__EMBED__UNLOAD_AFTER_S": str(REST_AFTER_S)}
"""Settings with which the services rest soon."""

_SYLLABLES = [consonant + vowel for consonant in "bcdfghklmnprstvz" for vowel in "aeiou"]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements: durations in seconds (`_ms`: milliseconds), sizes in bytes."""

    version: str
    processor: str
    cores: int
    memory_bytes: int
    model: str
    torch: bool
    installation_bytes: int
    start_s: float
    notes: int
    notes_words_s: float
    """Time after which all notes were found by their words."""
    notes_s: float
    """Time after which all notes were found by their meaning too."""
    files: int
    files_s: float
    search_p50_ms: float
    search_p99_ms: float
    memory_at_work_bytes: int
    memory_at_rest_bytes: int
    data_bytes: int


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(prog="scripts/bench installation", description=__doc__)
    parser.add_argument("--notes", type=int, default=NOTES, help=f"notes to index (default: {NOTES})")
    parser.add_argument("--files", type=int, default=FILES, help=f"files to index (default: {FILES})")
    parser.add_argument("--json", action="store_true", help="as JSON")
    arguments = parser.parse_args()
    if arguments.notes < 1 or arguments.files < 1:
        parser.error("--notes and --files must be at least 1")

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    # As with Ctrl-C, the kernel is stopped and the folder removed.
    signal.signal(signal.SIGTERM, end)
    with tempfile.TemporaryDirectory(prefix="linckia-bench-", ignore_cleanup_errors=True) as folder:
        figures = measured(Path(folder).resolve(), arguments.notes, arguments.files)
    if arguments.json:
        show_json(msgspec.to_builtins(figures))
    else:
        show_table(("WHAT", "HERE"), [list(row) for row in rows(figures)])


def rows(found: Figures) -> list[tuple[str, str]]:
    """Return the figures as rows of a table."""
    machine = f"{found.processor}, {found.cores} cores, {size(found.memory_bytes)}"
    return [
        ("machine", machine),
        ("version", f"{found.version}; model: {found.model}; torch: {'installed' if found.torch else 'not installed'}"),
        ("installation on disk", size(found.installation_bytes)),
        ("start until the first answer", f"{found.start_s:.1f} s"),
        (f"first index of {found.notes:,} notes, by words", duration(found.notes_words_s)),
        (f"first index of {found.notes:,} notes, by meaning", duration(found.notes_s)),
        (f"first index of {found.files:,} files", duration(found.files_s)),
        ("search of notes, p50", f"{found.search_p50_ms:.1f} ms"),
        ("search of notes, p99", f"{found.search_p99_ms:.1f} ms"),
        ("memory of all processes at work", size(found.memory_at_work_bytes)),
        ("memory of all processes at rest", size(found.memory_at_rest_bytes)),
        ("data directory", size(found.data_bytes)),
    ]


def measured(folder: Path, notes: int, files: int) -> Figures:
    """Measure a kernel of its own in `folder`. Raises Failed, ControlError, OSError."""
    choice = random.Random(1)
    words = words_of(choice)
    data, vault, tree, staged = folder / "data", folder / "notes", folder / "tree", folder / "staged"
    complain(f"writing {notes:,} notes and {files:,} files to {folder}")
    write_notes(vault, notes, words, choice)
    write_files(staged, files, choice)
    tree.mkdir()
    complain("starting a kernel")
    began = time.monotonic()
    with kernel(data, vault, tree) as status:
        start_s = time.monotonic() - began
        complain("indexing the notes")
        words_s, notes_s = until_indexed(status, began, notes)
        complain("indexing the files")
        with Client(data) as client:
            # Moved to the root in one step, or the kernel would index them while they are written.
            staged.rename(tree / "files")
            params = {"root": str(tree), "async": False, "maxAge": 0}
            files_s = _timed(lambda: client.call_named("index", params, timeout_s=INDEX_TIMEOUT_S))
            found = client.call_named("inspect", {"path": str(tree)})["files"]
            if found != files:
                raise Failed(f"{found} of {files} files were indexed")
            complain("searching")
            queries = [" ".join(choice.choices(words, k=3)) for _ in range(SEARCHES)]
            _search(client, "warm up")
            times = sorted(1000 * _timed(partial(_search, client, query)) for query in queries)
        at_work = int(status()["total_pss_bytes"])
        complain("waiting until the services rest")
        at_rest = _rested(status)
    return Figures(
        version=VERSION,
        processor=processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        model=next((name for name in models.AUTOMATIC if models.installed(name)), "none"),
        torch=extras.is_installed(extras.TORCH),
        installation_bytes=folder_bytes(Path(sys.prefix)),
        start_s=start_s,
        notes=notes,
        notes_words_s=words_s,
        notes_s=notes_s,
        files=files,
        files_s=files_s,
        search_p50_ms=statistics.median(times),
        search_p99_ms=times[int(0.99 * (len(times) - 1))],
        memory_at_work_bytes=at_work,
        memory_at_rest_bytes=at_rest,
        data_bytes=folder_bytes(data),
    )


def words_of(choice: random.Random) -> list[str]:
    """Return words for notes."""
    return ["".join(choice.choices(_SYLLABLES, k=choice.randint(1, 4))) for _ in range(5_000)]


def write_notes(folder: Path, count: int, words: list[str], choice: random.Random) -> None:
    """Write Markdown notes, each with a title, two sections, and links to others."""
    folder.mkdir()
    for number in range(count):
        title = " ".join(choice.choices(words, k=4)).title()
        text = [" ".join(choice.choices(words, k=WORDS_A_NOTE // 2)) for _ in range(2)]
        link = f"note-{choice.randrange(count)}"
        content = f"# {title}\n\n{text[0]}. See [[{link}]].\n\n## {words[number % len(words)].title()}\n\n{text[1]}.\n"
        (folder / f"note-{number}.md").write_text(content)


def write_files(folder: Path, count: int, choice: random.Random) -> None:
    """Write small files in a tree of folders with 100 files each."""
    for number in range(count):
        place = folder / f"part-{number // 1000}" / f"group-{number // 100 % 10}"
        if number % 100 == 0:
            place.mkdir(parents=True)
        ending = choice.choice(("txt", "py", "json", "log", "csv"))
        (place / f"file-{number}.{ending}").write_bytes(b"x" * choice.randint(1, 4_000))


@contextlib.contextmanager
def kernel(
    data: Path, *roots: Path, settings: Mapping[str, str] = SOON, http: Sequence[str] = ("--no-http",)
) -> Iterator[Callable[[], JsonObject]]:
    """Run a kernel with default settings, except that its services rest soon; yields a function that asks its status.

    Raises Failed if it does not start.
    """
    command = [sys.executable, "-P", "-m", module("kernel.cli"), "serve", *http, "--data", str(data)]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LINCKIA_")}
    data.mkdir()
    with (data / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *map(str, roots)], env=ours | dict(settings), stdin=subprocess.DEVNULL, stderr=log
        )

    def status() -> JsonObject:
        with Client(data) as client:
            answer: JsonObject = client.call_named("kernel_status", {}, timeout_s=30)
            return answer

    try:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(ControlError), Client(data) as client:
                client.call_named("mcp_echo", {"message": "ready"}, timeout_s=START_TIMEOUT_S)
                break
            if process.poll() is not None or time.monotonic() > give_up_at:
                said = (data / "serve.log").read_text(errors="replace").strip()
                raise Failed(f"the kernel did not start: {said or f'exit code {process.returncode}'}")
            time.sleep(POLL_S)
        yield status
    finally:
        process.terminate()
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until_indexed(status: Callable[[], JsonObject], began: float, notes: int) -> tuple[float, float]:
    """Return the times until all notes can be found by words, and by meaning too. Raises Failed."""
    words_s = 0.0
    while (now := time.monotonic() - began) < INDEX_TIMEOUT_S:
        services = {each["name"]: each for each in status()["services"]}
        info = services["knowledge"]["info"]
        if not words_s and info.get("notes") == str(notes) and info.get("pending") == "0":
            words_s = now
        if words_s and not services["retrieve"]["backlogs"]:
            return words_s, now
        time.sleep(POLL_S)
    raise Failed(f"the notes were not indexed within {INDEX_TIMEOUT_S:.0f} s")


def _rested(status: Callable[[], JsonObject]) -> int:
    """Return the smallest total memory in bytes, once it has not shrunk for some time."""
    least, since = int(status()["total_pss_bytes"]), time.monotonic()
    give_up_at = since + RESTS_WITHIN_S
    while (now := time.monotonic()) < give_up_at and now - since < 4 * REST_AFTER_S:
        time.sleep(1)
        if (found := int(status()["total_pss_bytes"])) < least - 2**20:
            least, since = found, now
    return least


def _search(client: Client, query: str) -> None:
    client.call_named("notes_search", {"query": query}, timeout_s=START_TIMEOUT_S)


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def processor() -> str:
    """Return the name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "Hardware"):
                return value.strip()
    return platform.machine()


def folder_bytes(folder: Path) -> int:
    """Return the disk space of all files in a folder, each counted once."""
    seen: dict[tuple[int, int], int] = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(path, name))
                seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


if __name__ == "__main__":
    main()
