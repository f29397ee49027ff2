"""Completes `.venv` for this checkout; the scripts in this folder run it if the environment is missing or stale.

It uses the standard library only and runs on the system's Python. A file lock allows one run at a time. The next run
repairs any interruption: the stamp that says "complete" is written last, and packages with missing files are installed
again.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPORT_ROOT = ROOT / "scripts" / "import_root"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "linckia-unfinished"
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_CPU_INDEX_TIMEOUT_S = 8
"""Long enough for a slow connection, short enough not to matter if that index cannot be reached."""

NEEDED_BYTES = {"cpu": 3 * 2**30, "cuda": 12 * 2**30}
"""Measured 1.9 GiB and about 9 GiB, plus the room that pip needs to unpack its downloads."""

OLDEST_PIP = (23, 1)
"""From this version on, `--dry-run --report` reads a wheel's metadata without downloading the wheel."""


class SetupFailed(Exception):
    """Set-up failed; the message says what happened and what to do next."""


def say(text: str) -> None:
    # Never stdout: `linckia stdio` speaks MCP there.
    print(f"linckia: {text}", file=sys.stderr, flush=True)


def stamp_path(extra: str) -> Path:
    return VENV / f"linckia-stamp{extra}"


def wanted_stamp() -> str:
    """Return the stamp that `environment.sh` compares, word for word."""
    return f"{ROOT}\n{(ROOT / 'pyproject.toml').read_text()}{CONSTRAINTS.read_text()}"


def is_complete(extra: str) -> bool:
    try:
        return os.access(PYTHON, os.X_OK) and stamp_path(extra).read_text() == wanted_stamp()
    except OSError:
        return False


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the set-up's lock; prints a message if another set-up has it."""
    # It lies next to .venv rather than inside, since .venv may be recreated.
    with (ROOT / ".venv-lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up of this checkout is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pip(*arguments: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run pip quietly, and return its output."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def pip_install(*arguments: str) -> None:
    """Run `pip install` with visible output.

    Raises:
        SetupFailed: pip's own message is printed above it.
    """
    bar = "on" if sys.stderr.isatty() else "off"
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", bar, *quiet]
    done = subprocess.run([*command, *arguments], stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SetupFailed(
            "pip could not install the requirements (its message is above). Once the network works and the disk has "
            "room, run the same command again: packages that were installed stay."
        )


def make_venv() -> None:
    """Create the virtual environment. Raises SetupFailed."""
    if usable():
        return
    say(f"making {VENV} with Python {'.'.join(map(str, sys.version_info[:3]))}")
    clear = ["--clear"] if VENV.exists() and not os.access(PYTHON, os.X_OK) else []
    for options in (clear, ["--clear"]):
        done = subprocess.run(
            [sys.executable, "-m", "venv", *options, str(VENV)], capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and usable():
            return
    raise SetupFailed(
        f"{sys.executable} cannot make a virtual environment: {(done.stdout + done.stderr).strip()[-600:]}\n"
        f"On Debian and Ubuntu: apt install python3.{sys.version_info.minor}-venv; then run the same command again."
    )


def usable() -> bool:
    """Return True if .venv has a Python that is new enough, with pip."""
    probe = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([str(PYTHON), "-c", probe], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def site_packages() -> Path:
    probe = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(PYTHON), "-c", probe], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def forget_torn_packages(site: Path) -> None:
    """Make pip reinstall packages that an interrupted run left incomplete.

    pip considers a package installed as soon as its metadata exists, even if half of its files are missing.
    """
    for metadata in site.glob("*.dist-info"):
        if not all((metadata / name).is_file() for name in ("METADATA", "RECORD", "INSTALLER")) or torn(metadata):
            say(f"{metadata.name.removesuffix('.dist-info')} is incomplete; it will be installed again")
            shutil.rmtree(metadata)


def torn(metadata: Path) -> bool:
    with (metadata / "RECORD").open(newline="") as record:
        for name, _digest, size, *_ in csv.reader(record):
            try:
                if size and (metadata.parent / name).stat().st_size != int(size):
                    return True
            except FileNotFoundError:
                if not name.endswith(".pyc"):
                    return True
    return False


def installed(site: Path) -> dict[str, str]:
    """Return versions by normalised name."""
    found = {}
    for metadata in site.glob("*.dist-info"):
        name, _, version = metadata.name.removesuffix(".dist-info").rpartition("-")
        found[normal(name)] = version
    return found


def normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def pinned(requirement: str) -> tuple[str, str]:
    """Return name and version of a pinned requirement, without its extras."""
    name, _, version = requirement.partition("==")
    return normal(name.partition("[")[0]), version


def is_there(requirement: str, have: dict[str, str]) -> bool:
    name, version = pinned(requirement)
    # A local label (2.13.0+cpu) satisfies the public version, as in PEP 440.
    return have.get(name, "").partition("+")[0] == version


def torch_kind() -> tuple[str, str]:
    """Return `cpu` or `cuda`, and the reason.

    Raises:
        SetupFailed: LINCKIA_TORCH has another value.
    """
    asked = os.environ.get("LINCKIA_TORCH", "")
    if asked:
        if asked not in ("cpu", "cuda"):
            raise SetupFailed(f"LINCKIA_TORCH is {asked!r}; it may be cpu or cuda")
        return asked, f"LINCKIA_TORCH={asked}"
    if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        return "cuda", "an NVIDIA GPU was found; set LINCKIA_TORCH=cpu to override"
    return "cpu", "no NVIDIA GPU was found; set LINCKIA_TORCH=cuda to override"


def resolves_to_cpu(requirement: str, *options: str, timeout_s: float | None = None) -> bool | None:
    """Return True if pip would install a build without CUDA, None if it finds no build at all."""
    arguments = ("install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-", *options)
    try:
        answer = pip(*arguments, requirement, timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return None
    if answer.returncode:
        return None
    metadata = json.loads(answer.stdout)["install"][0]["metadata"]
    needs = [need for need in metadata.get("requires_dist", []) if "extra ==" not in need]
    return metadata["version"].endswith("+cpu") or not any(n.startswith(("nvidia-", "cuda-", "triton")) for n in needs)


def install_torch(requirement: str) -> None:
    """Install the build that fits this machine, since CUDA's libraries are gigabytes and useless without a GPU.

    Raises:
        SetupFailed: see `pip_install`.
    """
    kind, why = torch_kind()
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES[kind]:
        say(f"only {free / 2**30:.1f} GiB free here; up to {NEEDED_BYTES[kind] / 2**30:.0f} GiB are needed")
    say(f"installing {requirement} for {kind} ({why})")
    if kind == "cpu" and resolves_to_cpu(requirement) is False:
        short = ("--retries", "0", "--timeout", str(TORCH_CPU_INDEX_TIMEOUT_S))
        elsewhere = ("--extra-index-url", TORCH_CPU_INDEX)
        build = f"{requirement}+cpu"
        if resolves_to_cpu(build, *short, *elsewhere, timeout_s=6 * TORCH_CPU_INDEX_TIMEOUT_S):
            pip_install("--constraint", str(CONSTRAINTS), *elsewhere, build)
            return
        say(f"{TORCH_CPU_INDEX} does not answer; installing the build with CUDA, which is larger but works as well")
    pip_install("--constraint", str(CONSTRAINTS), requirement)


def set_up(extra: str) -> None:
    """Set up the environment. Raises SetupFailed."""
    began = time.monotonic()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    alone = {normal(name) for name in project["tool"]["linckia"]["setup"]["alone"]}
    wanted: list[str] = list(project["project"]["dependencies"])
    extras = project["project"].get("optional-dependencies", {})
    if extra and extra not in extras:
        raise SetupFailed(f"unknown extra {extra!r} (LINCKIA_EXTRA); use one of: {', '.join(extras)}")
    wanted += extras.get(extra, [])

    first = not VENV.exists()
    make_venv()
    site = site_packages()
    if UNFINISHED.exists():
        forget_torn_packages(site)
    UNFINISHED.touch()
    have = installed(site)
    missing = [requirement for requirement in wanted if not is_there(requirement, have)]
    if missing:
        say(f"setting up {'for the first time' if first else 'again'}: this happens once and may take some minutes")
        if tuple(int(part) for part in have.get("pip", "0").split(".")[:2] if part.isdigit()) < OLDEST_PIP:
            say("bringing pip up to date")
            pip_install("--upgrade", "pip")
        install_missing(missing, alone)
    # The checkout itself, without a build step: an edit takes effect at the next start.
    (site / "linckia-checkout.pth").write_text(f"{IMPORT_ROOT}\n")
    check(wanted, site)
    compile_checkout()
    for stamp in {stamp_path(""), stamp_path(extra)}:
        temporary = stamp.with_name(stamp.name + ".new")
        temporary.write_text(wanted_stamp())
        temporary.replace(stamp)
    UNFINISHED.unlink()
    if missing:
        say(f"ready, after {time.monotonic() - began:.0f} s")


def install_missing(missing: Sequence[str], alone: set[str]) -> None:
    for requirement in missing:
        if pinned(requirement)[0] == "torch":
            install_torch(requirement)
    with_needs = [r for r in missing if pinned(r)[0] not in alone and pinned(r)[0] != "torch"]
    if with_needs:
        say(f"installing {len(with_needs)} packages: {', '.join(with_needs)}")
        pip_install("--constraint", str(CONSTRAINTS), *with_needs)
    for requirement in (r for r in missing if pinned(r)[0] in alone):
        say(f"installing {requirement}")
        pip_install("--no-deps", requirement)


def compile_checkout() -> None:
    """Compile the checkout in advance, since an MCP client waits for the first start."""
    packages = [str(ROOT / name) for name in ("proto", "kernel", "services") if (ROOT / name).is_dir()]
    command = [str(PYTHON), "-m", "compileall", "-q", "-q", "-j", "0", *packages]
    if subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode:
        say("this checkout could not be compiled in advance; the first start will take a second longer")


def check(wanted: Sequence[str], site: Path) -> None:
    """Raise SetupFailed if pip reported success but something is still missing."""
    have = installed(site)
    if missing := [requirement for requirement in wanted if not is_there(requirement, have)]:
        raise SetupFailed(
            f"after the installation these are still missing: {', '.join(missing)}; run the same command again"
        )


def main() -> int:
    extra = sys.argv[1] if len(sys.argv) > 1 else ""
    if not sys.platform.startswith("linux"):
        say(f"this is {sys.platform}; Linckia runs on Linux (on Windows: inside WSL)")
        return 1
    try:
        with only_one():
            if not is_complete(extra):
                set_up(extra)
    except SetupFailed as failure:
        say(str(failure))
        return 1
    except OSError as error:
        say(f"set-up failed: {error}. Fix that and run the same command again.")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next start continues from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
