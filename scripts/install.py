"""Completes `.venv` for this checkout; the scripts in this folder run it if the environment is missing or stale.

pip installs what pyproject.toml names, in the versions of constraints.txt: the base, and the extras that are asked for
or were installed before. The script itself uses the standard library only and runs on the system's Python. A file lock
allows one run at a time. The next run repairs any interruption: the stamps that say "complete" are written last, and a
run that was killed leaves a mark, after which the environment is made anew from pip's cache.
"""

from __future__ import annotations

import contextlib
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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IMPORT_ROOT = ROOT / "scripts" / "import_root"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PIP_INSTALL = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install"]
STAMP = "linckia-stamp"
UNFINISHED = ROOT / ".venv-unfinished"
"""The extras of a set-up that runs, or was killed."""

CONSTRAINTS = ROOT / "scripts" / "constraints.txt"

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_CPU_INDEX_TIMEOUT_S = 8
"""Long enough for a slow connection, short enough not to matter if that index cannot be reached."""

NEEDED_BYTES = {"": 2**30, "cpu": 3 * 2**30, "cuda": 12 * 2**30}
"""Disk space for the base, and with torch: measured 0.5, 1.6 and about 9 GiB, and the room in which pip unpacks."""

TORCH, OPENVINO = "torch", "openvino"

NOT_COMPILED = r"/(tests?|testing|lexers|pip|_vendor|onnxruntime/(tools|quantization|transformers))/"
"""Modules that are never imported, and whose bytecode would be 40 MB."""

PIP = "pip>=25.1"
"""Installs in two thirds of the time of older ones, and `--dry-run --report` does not download wheels."""


class SetupFailed(Exception):
    """Set-up failed; the message says what happened and what to do next."""


def say(text: str) -> None:
    # Never stdout: `linckia stdio` speaks MCP there.
    print(f"linckia: {text}", file=sys.stderr, flush=True)


def stamp_path(extra: str = "") -> Path:
    """Return the file that says that an extra is complete; without a name, that the base is."""
    return VENV / (f"{STAMP}-{extra}" if extra else STAMP)


def wanted_stamp() -> str:
    """Return the stamp that `environment.sh` compares, word for word."""
    return f"{ROOT}\n{(ROOT / 'pyproject.toml').read_text()}{CONSTRAINTS.read_text()}"


def is_complete(extras: Sequence[str]) -> bool:
    try:
        stamps = [stamp_path(extra).read_text() for extra in ("", *extras)]
    except OSError:
        return False
    return os.access(PYTHON, os.X_OK) and set(stamps) == {wanted_stamp()}


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


def pip_install(*arguments: str) -> None:
    """Run `pip install` with visible output.

    Raises:
        SetupFailed: pip's own message is printed above it.
    """
    bar = "on" if sys.stderr.isatty() else "off"
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    options = ["--no-compile", "--progress-bar", bar, *quiet]
    done = subprocess.run(
        [*PIP_INSTALL, *options, *arguments], stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise SetupFailed(
            "pip could not install the requirements (its message is above). Once the network works and the disk has "
            "room, run the same command again: packages that were installed stay."
        )


def make_venv() -> None:
    """Create the virtual environment, unless a usable one exists that no run left half made. Raises SetupFailed."""
    if usable() and not UNFINISHED.exists():
        return
    say(f"making {VENV} with Python {'.'.join(map(str, sys.version_info[:3]))}")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not usable():
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


def known_extras(settings: dict[str, Any]) -> dict[str, list[str]]:
    """Return the requirements of the extras, and of the groups for work on Linckia, of a pyproject.toml."""
    return {**settings["project"].get("optional-dependencies", {}), **settings.get("dependency-groups", {})}


def requirements(settings: dict[str, Any], extras: Sequence[str]) -> dict[str, list[str]]:
    """Return the requirements of each extra, and those of the base under "". Raises SetupFailed if one is unknown."""
    known = known_extras(settings)
    found = {"": list(settings["project"]["dependencies"])}
    left = list(extras)
    while left:
        if (extra := left.pop(0)) not in known:
            raise SetupFailed(f"unknown extra {extra!r} (LINCKIA_EXTRA); use one of: {', '.join(known)}")
        named = [each for each in known[extra] if each.startswith("linckia[")]
        left += [name for each in named for name in each[len("linckia[") : -1].split(",") if name not in found]
        found[extra] = [each for each in known[extra] if each not in named]
    return found


def torch_kind() -> tuple[str, str]:
    """Return `cpu` or `cuda`, and the reason.

    Raises:
        SetupFailed: LINCKIA_TORCH has another value.
    """
    asked = os.environ.get("LINCKIA_TORCH", "")
    if asked not in ("", "none"):
        if asked not in ("cpu", "cuda"):
            raise SetupFailed(f"LINCKIA_TORCH is {asked!r}; it may be cpu, cuda or none")
        return asked, f"LINCKIA_TORCH={asked}"
    if nvidia_gpu():
        return "cuda", "an NVIDIA GPU was found; set LINCKIA_TORCH=cpu to override"
    return "cpu", "no NVIDIA GPU was found; set LINCKIA_TORCH=cuda to override"


def nvidia_gpu() -> bool:
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def has_amx() -> bool:
    """Return whether the processor multiplies matrices of bf16 in hardware."""
    return " amx_bf16 " in Path("/proc/cpuinfo").read_text().replace("\n", " ")


def resolves_to_cpu(requirement: str, *options: str, timeout_s: float | None = None) -> bool | None:
    """Return True if pip would install a build without CUDA, None if it finds no build at all."""
    arguments = ("--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-", *options, requirement)
    try:
        answer = subprocess.run(
            [*PIP_INSTALL, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
        )
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
    say(f"installing {requirement} for {kind} ({why})")
    if kind == "cpu" and resolves_to_cpu(requirement) is False:
        short = ("--retries", "0", "--timeout", str(TORCH_CPU_INDEX_TIMEOUT_S))
        elsewhere = ("--extra-index-url", TORCH_CPU_INDEX)
        build = f"{requirement}+cpu"
        if resolves_to_cpu(build, *short, *elsewhere, timeout_s=6 * TORCH_CPU_INDEX_TIMEOUT_S):
            pip_install("--constraint", str(CONSTRAINTS), *elsewhere, build)
            return
        raise SetupFailed(
            f"{TORCH_CPU_INDEX} does not answer, and the package index only has torch with CUDA's libraries, which are "
            "gigabytes. Run the same command again later, or set LINCKIA_TORCH=cuda to install that build, or "
            "LINCKIA_TORCH=none to go on without torch"
        )
    pip_install("--constraint", str(CONSTRAINTS), requirement)


def wanted_extras(asked: str) -> list[str]:
    """Return the extras in `asked` (names with commas), those that are installed, torch if a first set-up finds an
    NVIDIA GPU or LINCKIA_TORCH asks for it, and OpenVINO if a first set-up finds AMX, with which it is much faster.
    """
    unfinished = UNFINISHED.read_text() if UNFINISHED.exists() else ""
    extras = [name.strip() for name in f"{asked},{unfinished}".split(",") if name.strip()]
    installed_before = (path.name for path in VENV.glob(f"{STAMP}-*") if path.suffix != ".new")
    extras += sorted(name.removeprefix(f"{STAMP}-") for name in installed_before)
    kind = os.environ.get("LINCKIA_TORCH", "")
    if kind in ("cpu", "cuda") or (kind != "none" and not stamp_path().exists() and nvidia_gpu()):
        extras.append(TORCH)
    if not stamp_path().exists() and has_amx():
        extras.append(OPENVINO)
    return list(dict.fromkeys(extras))


def set_up(extras: Sequence[str]) -> None:
    """Set up the environment. Raises SetupFailed."""
    began = time.monotonic()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    setup = project["tool"]["linckia"]["setup"]
    parts = requirements(project, extras)
    first = not VENV.exists()
    make_venv()
    site = next((VENV / "lib").glob("python3.*/site-packages"))
    say(f"setting up {'for the first time' if first else 'again'}: this happens once and may take some minutes")
    announce([part for part in parts if not stamp_path(part).exists()], setup.get("download_mb", {}))
    compiling = compile_checkout()
    UNFINISHED.write_text(",".join(extras))
    before = site.stat().st_mtime_ns
    try:
        install(parts, setup["alone"], site)
    except SetupFailed:
        # pip has restored what it could not replace.
        UNFINISHED.unlink()
        raise
    if site.stat().st_mtime_ns != before:
        compile_packages(site)
    # The checkout itself, without a build step: an edit takes effect at the next start.
    (site / "linckia-checkout.pth").write_text(f"{ROOT}\n{IMPORT_ROOT}\nimport linckia_in_checkout\n")
    if compiling.wait():
        say("this checkout could not be compiled in advance; the first start will take a second longer")
    for extra in parts:
        temporary = stamp_path(extra).with_name(stamp_path(extra).name + ".new")
        temporary.write_text(wanted_stamp())
        temporary.replace(stamp_path(extra))
    UNFINISHED.unlink()
    say(f"ready, after {time.monotonic() - began:.0f} s")


def announce(parts: Sequence[str], download_mb: dict[str, int]) -> None:
    """Say about how much new parts will download, and whether the disk has room for them."""
    if not parts:
        return
    kind = torch_kind()[0] if TORCH in parts else ""
    size = sum(download_mb.get(f"{TORCH}-{kind}" if part == TORCH else part or "base", 0) for part in parts)
    what = " and ".join(part or "the base" for part in parts)
    say(f"about {size} MB will be downloaded, unless pip has them in its cache: {what}")
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES[kind]:
        say(f"only {free / 2**30:.1f} GiB free here; up to {NEEDED_BYTES[kind] / 2**30:.0f} GiB are needed")


def install(parts: dict[str, list[str]], alone: Sequence[str], site: Path) -> None:
    """Install what is missing or has another version than the tested one. Raises SetupFailed."""
    pip_install(PIP)
    if TORCH in parts:
        pin = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith(f"{TORCH}=="))
        # A local label (2.13.0+cpu) satisfies the public version, as in PEP 440.
        if not any(site.glob(f"{pin.replace('==', '-')}[.+]*")):
            install_torch(pin)
    # pip refuses to install nothing.
    if requirements := [each for needed in parts.values() for each in needed]:
        pip_install("--constraint", str(CONSTRAINTS), *requirements)
    if alone:
        pip_install("--no-deps", *alone)


def compile_checkout() -> subprocess.Popen[bytes]:
    """Start to compile the checkout, since a client waits for the first start."""
    packages = [name for name in ("proto", "kernel", "services") if (ROOT / name).is_dir()]
    return subprocess.Popen([*_compile(), *packages], cwd=ROOT, stdout=sys.stderr, stdin=subprocess.DEVNULL)


def compile_packages(site: Path) -> None:
    """Compile the installed packages, since services may not write there. Some have templates, which do not compile."""
    # The pattern is compared with relative paths.
    command = [*_compile(), "-j", "0", "-p", str(site), "-x", NOT_COMPILED, "."]
    subprocess.run(command, cwd=site, capture_output=True, stdin=subprocess.DEVNULL, check=False)


def _compile() -> list[str]:
    return [str(PYTHON), "-m", "compileall", "-q", "-q"]


def main() -> int:
    if not sys.platform.startswith("linux"):
        say(f"this is {sys.platform}; Linckia runs on Linux (on Windows: inside WSL)")
        return 1
    try:
        with only_one():
            extras = wanted_extras(sys.argv[1] if len(sys.argv) > 1 else "")
            if not is_complete(extras):
                set_up(extras)
    except SetupFailed as failure:
        say(str(failure))
        return 1
    except OSError as error:
        say(f"set-up failed: {error}. Fix that and run the same command again.")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next start continues with what was downloaded")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
