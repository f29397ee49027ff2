"""Builds a release: the source distribution, the wheel, a bill of materials (CycloneDX), and their SHA-256 checksums.

Each archive is built twice, in different folders: from the commit, and the wheel also from the source distribution.
They have the same bytes, so anybody can build them again and compare. The bill of materials lists the wheel as it is
installed with the tested versions of its dependencies, with their licences.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUMS = "SHA256SUMS"
TOOLS = ("setuptools==84.2.1", "cyclonedx-bom==7.5.0")
"""Exact versions, since another setuptools may write other bytes."""

BUILD = (
    "import sys; sys.path.insert(0, 'scripts'); import build_backend as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
)


class ReleaseFailed(Exception):
    """The release could not be built; the message says why."""


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Return the output of a command. Raises ReleaseFailed with all that it said."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseFailed(f"{' '.join(map(str, command[:6]))}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def environment(folder: Path, *arguments: str | Path) -> Path:
    """Make a virtual environment with what pip's arguments name, and return its Python. Raises ReleaseFailed."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments)
    return python


def commit(folder: Path) -> Path:
    """Unpack what git has committed. Raises ReleaseFailed."""
    folder.mkdir()
    run("git", "archive", "--output", folder / "source.tar", "HEAD")
    shutil.unpack_archive(folder / "source.tar", folder / "source", filter="data")
    return folder / "source"


def build(python: Path, what: str, source: Path, target: Path) -> Path:
    """Build an archive with the backend of its source. Raises ReleaseFailed."""
    target.mkdir(parents=True, exist_ok=True)
    return target / run(python, "-c", BUILD, what, target, folder=source).split()[-1]


def archives(python: Path, work: Path) -> list[Path]:
    """Build the source distribution and the wheel, each twice. Raises ReleaseFailed if they differ."""
    sources = [commit(work / name) for name in ("first", "second")]
    sdists = [build(python, "build_sdist", source, source.parent / "sdist") for source in sources]
    shutil.unpack_archive(sdists[0], work / "unpacked", filter="data")
    (unpacked,) = (work / "unpacked").iterdir()
    wheels = [build(python, "build_wheel", source, source / "wheel") for source in (unpacked, sources[1])]
    for one, other in (sdists, wheels):
        if one.read_bytes() != other.read_bytes():
            raise ReleaseFailed(f"{one.name} was built twice and differs: compare {one} with {other}")
    return [sdists[0], wheels[0]]


def materials(python: Path, wheel: Path, work: Path) -> Path:
    """Install the wheel as a user would, in the tested versions, and list what is there. Raises ReleaseFailed."""
    constraints = ("--constraint", ROOT / "scripts" / "constraints.txt")
    installed = environment(work / "installed", *constraints, wheel)
    run(installed, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    made = work / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    options = ("--output-reproducible", "--output-format", "JSON")
    run(python, "-m", "cyclonedx_py", "environment", *options, "--output-file", made, installed)
    return made


def sums(files: Iterable[Path]) -> str:
    """Return the lines that `sha256sum --check` reads."""
    return "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(files))


def release(to: Path) -> None:
    """Build everything, and put it into a folder. Raises ReleaseFailed, OSError."""
    if to.exists() and any(to.iterdir()):
        raise ReleaseFailed(f"{to} is not empty: name another folder, or empty it")
    if changed := run("git", "status", "--porcelain", "--untracked-files=no"):
        print(f"release: not committed, so not in it:\n{changed}", end="", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="linckia-release-") as held:
        work = Path(held)
        python = environment(work / "tools", *TOOLS)
        sdist, wheel = archives(python, work)
        made = [sdist, wheel, materials(python, wheel, work)]
        to.mkdir(parents=True, exist_ok=True)
        for each in made:
            shutil.copy(each, to)
    (to / SUMS).write_text(sums(to / each.name for each in made))
    print((to / SUMS).read_text(), end="")


if __name__ == "__main__":
    try:
        release(Path(sys.argv[1]))
    except (ReleaseFailed, OSError) as error:
        sys.exit(f"release: {error}")
