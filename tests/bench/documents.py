"""The store of documents beside restic, borg and ripgrep, on the same files in the same run.

scripts/bench documents versions [FILES]   three successive versions of a source tree; the same of /usr/share/doc
scripts/bench documents grep [DOCUMENTS]   the first hundred matches in as many stored documents, against ripgrep
scripts/bench documents kills [POINTS]     kills at random points of add, directory add and garbage collection
scripts/bench documents large [MIB]        one file in and out, with the most memory that each process has used

Trees are made of the files of this installation.  `--keep DIR` works in DIR and leaves it there, so that what a run
has stored is not stored again by the next.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import trio

from proto.ops.documents_find import DocumentsGrep
from services.documents import grep as grepping
from services.documents.compress import Codec
from services.documents.store import Store
from tests.system.documents_kills import kill_at_random_points
from tests.system.running import RunningKernel, running
from tests.system.test_documents import peaks, write_large

LARGEST = 512 * 1024
PATTERNS = ("class \\w+Handler\\b", "def test_\\w*cancel\\w*", "raise NotImplementedError\\(", "Copyright.*Foundation")
MATCHES = 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench documents", description=__doc__)
    parser.add_argument("what", choices=("versions", "grep", "kills", "large"), nargs="?", default="versions")
    parser.add_argument("count", type=int, nargs="?")
    parser.add_argument("--keep", metavar="DIR", type=Path)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        match arguments.what:
            case "versions":
                versions(folder, arguments.count or 32_000)
            case "grep":
                grep(folder, arguments.count or 100_000)
            case "kills":
                kills(folder, arguments.count or 100)
            case _:
                large(folder, arguments.count or 1024)


# Trees


def sources() -> Iterator[Path]:
    """Files of this installation, without what is compiled or very large."""
    for place in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/usr/share", "/usr/lib")):
        for folder, folders, names in os.walk(place):
            folders.sort()
            folders[:] = [one for one in folders if one not in ("__pycache__", "site-packages", "node_modules")]
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in (".so", ".pyc", ".a") or path.is_symlink() or not path.is_file():
                    continue
                if 0 < path.stat().st_size <= LARGEST:
                    yield path


def make_tree(tree: Path, count: int, note: str = "") -> int:
    """Copies of `count` files; answers their size."""
    size = 0
    for number, path in enumerate(sources()):
        if number == count:
            break
        place = tree / f"{number // 400:03}" / f"{number:06}-{path.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() + note.encode()
        place.write_bytes(data)
        size += len(data)
    return size


def change(tree: Path, seed: int) -> None:
    """The next version: some files changed, some new, some gone."""
    rng = random.Random(seed)
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    for path in rng.sample(files, len(files) // 15):
        data = path.read_bytes()
        at = rng.randrange(len(data) + 1)
        path.write_bytes(data[:at] + f"changed in version {seed}\n".encode() + data[at:])
    for path in rng.sample(files, len(files) // 60):
        path.unlink(missing_ok=True)
    for path in rng.sample(files, len(files) // 60):
        if path.exists():
            path.with_name(f"new-{seed}-{path.name}").write_bytes(path.read_bytes() + f"version {seed}\n".encode())


def extent(tree: Path) -> tuple[int, int]:
    """Files and bytes."""
    sizes = [path.stat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    return len(sizes), sum(sizes)


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# Versions


def versions(folder: Path, files: int) -> None:
    root = folder / "root"
    tree = root / "tree"

    def source_tree(version: int) -> None:
        if version:
            change(tree, version)
        else:
            make_tree(tree, files)

    def manuals(version: int) -> None:
        if not version:
            shutil.copytree("/usr/share/doc", tree, symlinks=True, ignore_dangling_symlinks=True)

    _compare(folder, tree, "source tree", source_tree, 3)
    _compare(folder, tree, "/usr/share/doc", manuals, 2)


Add = Callable[[int], object]


def _compare(folder: Path, tree: Path, name: str, make: Callable[[int], None], count: int) -> None:
    """Each store has the machine, and versions of the same bytes, to itself."""
    times: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    work = folder / "stores"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()

    def successive(one: str, add: Add, settle: Callable[[], None]) -> list[tuple[int, int]]:
        shutil.rmtree(tree.parent, ignore_errors=True)
        extents: list[tuple[int, int]] = []
        for version in range(count):
            make(version)
            extents.append(extent(tree))
            subprocess.run(["tar", "-cf", "/dev/null", "-C", str(tree), "."], check=True, stderr=subprocess.DEVNULL)
            os.sync()
            began = time.monotonic()
            add(version)
            times.setdefault(one, []).append(time.monotonic() - began)
            settle()
        return extents

    with _kernel(work / "data", tree.parent) as kernel:
        extents = successive(
            "linckia",
            lambda version: kernel.call("documents_add", {"path": str(tree), "no_ignore": True}, timeout_s=600),
            lambda: _until_idle(kernel),
        )
        status = kernel.call("documents_status")
        assert status["total_objects"] >= extents[-1][0], status
        sizes["linckia"] = _packs(work / "data")
    for peer, command in _peers(work):
        with tempfile.TemporaryFile() as said:

            def add(version: int, command: list[str] = command, peer: str = peer) -> None:
                place = [f"{work}/borg::v{version}"] if peer == "borg" else []
                subprocess.run([*command, *place, "."], check=True, cwd=tree, env=_environment(), stdout=said,
                               stderr=said)  # fmt: skip

            successive(peer, add, lambda: None)
        sizes[peer] = on_disk(work / peer)
    print(f"\n{name}: {extents[0][0]} files, {extents[0][1] / 2**20:.0f} MiB; {count} versions")
    print(f"{'':<10}" + "".join(f"{f'v{n + 1} s':>9}{'files/s':>9}{'MB/s':>8}" for n in range(count)) + "   stored")
    for one, taken in times.items():
        figures = "".join(
            f"{took:>9.2f}{extents[n][0] / took:>9.0f}{extents[n][1] / took / 1e6:>8.0f}"
            for n, took in enumerate(taken)
        )
        print(f"{one:<10}{figures}{sizes[one] / 2**20:>6.1f} MiB")
    for one in times:
        if one != "linckia":
            ratios = " / ".join(f"{a / b:.2f}" for a, b in zip(times[one], times["linckia"], strict=True))
            print(f"{one} : linckia   time {ratios}   size {sizes[one] / sizes['linckia']:.2f}")
    print(f"of {status['total_bytes'] / 2**20:.0f} MiB, {status['dedup_ratio']:.1%} was there already", flush=True)


def _until_idle(kernel: RunningKernel, at_most_s: float = 120.0) -> None:
    """Until the service does nothing more in the background."""
    give_up = time.monotonic() + at_most_s
    pid = kernel.service("documents")["pid"]
    quiet = 0
    while quiet < 2 and time.monotonic() < give_up:
        before = _cpu_s(pid)
        time.sleep(0.4)
        quiet = quiet + 1 if _cpu_s(pid) - before < 0.03 else 0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peers(work: Path) -> Iterator[tuple[str, list[str]]]:
    if shutil.which("restic"):
        subprocess.run(["restic", "init", "-r", str(work / "restic")], check=True, env=_environment(),
                       stdout=subprocess.DEVNULL)  # fmt: skip
        yield "restic", ["restic", "backup", "-q", "-r", str(work / "restic"), "--compression", "auto"]
    if shutil.which("borg"):
        subprocess.run(["borg", "init", "-e", "none", str(work / "borg")], check=True, env=_environment(),
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        yield "borg", ["borg", "create", "-C", "zstd,3"]
    if not shutil.which("restic") or not shutil.which("borg"):
        print("restic or borg is not installed: apt-get install -y restic borgbackup")


def _environment() -> dict[str, str]:
    cache = os.path.join(tempfile.gettempdir(), "linckia-bench")
    return {
        **os.environ,
        "RESTIC_PASSWORD": "bench",
        "RESTIC_CACHE_DIR": f"{cache}-restic",
        "BORG_BASE_DIR": f"{cache}-borg",
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }


def _packs(data: Path) -> int:
    """The store itself, without the index that finds in it."""
    return sum(path.stat().st_size for path in data.rglob("packs.db*") if not path.name.endswith("-shm"))


@contextlib.contextmanager
def _kernel(data: Path, root: Path) -> Iterator[RunningKernel]:
    """Without the services that would embed what is stored at the same time."""
    with running(data, [root], all_ready=False) as kernel:
        kernel.wait_ready("documents")
        for name in kernel.services():
            if name not in ("documents", "echo"):
                kernel.call("kernel_stop", {"service": name})
        yield kernel


# Grep


def grep(folder: Path, count: int) -> None:
    root, data = folder / "root", folder / "grep-data"
    if not (root / "done").exists():
        shutil.rmtree(root, ignore_errors=True)
        each = min(count, sum(1 for _ in zip(sources(), range(count), strict=False)))
        for copy in range(-(-count // each)):
            make_tree(root / f"copy-{copy}", min(each, count - copy * each), f"\n# copy {copy}\n" if copy else "")
        (root / "done").touch()
    with _kernel(data, root) as kernel:
        if kernel.call("documents_status")["total_objects"] < count:
            began = time.monotonic()
            kernel.call("documents_add", {"path": str(root), "no_ignore": True}, timeout_s=900)
            print(f"added in {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        while kernel.call("documents_status")["index_waiting"]:
            time.sleep(0.5)
        print(f"indexed after {time.monotonic() - began:.1f} s more")
        status = kernel.call("documents_status")
        hostile(kernel)
    print(f"{status['total_objects']} documents, {status['total_bytes'] / 2**20:.0f} MiB")
    (packs,) = data.rglob("packs.db")
    trio.run(_measure, packs.parent, root)


def hostile(kernel: RunningKernel) -> None:
    """Patterns made to take for ever end, and say how far they came."""
    for pattern in ("(a+)+$", "(x+x+)+y(?=z)", "(.*)\\1\\1\\1", "(?:a?){60}a{60}", "[^\\n]*(?<!b)[^\\n]*c"):
        began = time.monotonic()
        answer = kernel.call("documents_grep", {"pattern": pattern, "limit": MATCHES}, timeout_s=60)
        print(f"hostile {pattern!r:<28} {time.monotonic() - began:6.2f} s  {answer['match_count']} matches, "
              f"{'truncated' if answer['truncated'] else 'complete'}")  # fmt: skip


async def _measure(folder: Path, root: Path) -> None:
    store = Store(folder)
    codec = await store.read(Codec)
    ripgrep = shutil.which("rg")
    print(f"{'pattern':<36}{'matches':>8}{'CPU ms':>9}{'rg CPU ms':>11}{'ratio':>8}")
    for pattern in PATTERNS:
        params = DocumentsGrep(pattern=pattern, limit=MATCHES)
        taken: list[float] = []
        for _ in range(7):
            began = time.process_time()
            answer = await store.read(partial(grepping.grep, codec=codec, params=params))
            taken.append((time.process_time() - began) * 1000)
        ours, theirs = statistics.median(taken), float("nan")
        if ripgrep:
            theirs = await trio.to_thread.run_sync(_children_ms, [ripgrep, "--no-ignore", "-e", pattern, str(root)])
        print(f"{pattern:<36}{len(answer.matches):>8}{ours:>9.1f}{theirs:>11.0f}{theirs / ours:>8.0f}")
    if not ripgrep:
        print("ripgrep is not installed: apt-get install -y ripgrep")
    store.close()


def _children_ms(command: list[str]) -> float:
    """The CPU time of a command."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    after = os.times()
    return (after.children_user + after.children_system - before.children_user - before.children_system) * 1000


# Kills, and a large file


def kills(folder: Path, points: int) -> None:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    with running(folder / "data", [root], all_ready=False) as kernel:
        kernel.wait_ready("documents")
        known = trio.run(kill_at_random_points, kernel, root, points)
    print(f"{known.kills} kills at {points} points; {len(known.there)} acknowledged documents are there and whole")


def large(folder: Path, mib: int) -> None:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    digest = write_large(root / "large.bin", mib * 2**20)
    with _kernel(folder / "data", root) as kernel:
        began = time.monotonic()
        added = kernel.call("documents_add", {"path": str(root / "large.bin")}, timeout_s=600)
        stored = time.monotonic()
        got = kernel.call("documents_get", {"hash": digest, "outputPath": str(root / "copy.bin")}, timeout_s=600)
        ended = time.monotonic()
        assert added["hash"] == digest
        with open(got["output_path"], "rb") as copy:
            assert hashlib.file_digest(copy, "sha256").hexdigest() == digest
        print(f"{mib} MiB in {stored - began:.1f} s, out {ended - stored:.1f} s")
        for name, peak in peaks(kernel).items():
            print(f"{name}: {peak / 2**20:.0f} MiB at most")


if __name__ == "__main__":
    main()
