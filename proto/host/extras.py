"""Optional parts of the installation, and the command that adds one to the installation that is running."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import sys
from pathlib import Path
from typing import Final

TORCH: Final = "torch"
"""Models on GPUs, cross-encoders, and model families other than BERT."""
VIDEO: Final = "video"
"""Metadata and frames of video and audio files."""

OPENVINO: Final = "openvino"
"""Embedding on processors with AMX, at nearly twice the speed."""

POSTGRES: Final = "postgres"
"""Collections on a PostgreSQL server with pgvector."""

VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"
"""Variable that limits CUDA to some GPUs, by number or UUID."""

RAY: Final = "ray"
"""Stateless services on other machines."""

RAY_DATA: Final = "ray-data"
"""Embedding a whole corpus on other machines."""

REMOTE: Final = "remote"
"""Backups to other machines."""

CPU_INDEX: Final = "https://download.pytorch.org/whl/cpu"
"""Has torch without CUDA's libraries, which are gigabytes."""

_MODULES: Final = {
    TORCH: ("torch", "transformers"),
    VIDEO: ("av",),
    OPENVINO: ("openvino",),
    POSTGRES: ("psycopg", "pgvector", "Stemmer"),
    RAY: ("ray", "cryptography"),
    REMOTE: ("asyncssh", "obstore"),
    RAY_DATA: ("ray", "cryptography", "pyarrow", "pandas"),
}


def is_installed(extra: str) -> bool:
    """Return whether the extra's packages are installed. Imports nothing."""
    return all(importlib.util.find_spec(module) is not None for module in _MODULES[extra])


def gpu_present() -> bool:
    """Return whether the NVIDIA driver has created its devices. Asking CUDA itself would take seconds."""
    return Path("/dev/nvidiactl").exists() and bool(_gpu_devices())


def gpus() -> tuple[str, ...]:
    """Return the GPUs that this system may use, by the names that `CUDA_VISIBLE_DEVICES` gives them."""
    if not gpu_present():
        return ()
    if (given := os.environ.get(VISIBLE_GPUS)) is None:
        # CUDA counts from 0, even if a container has only the device /dev/nvidia3.
        return tuple(map(str, range(len(_gpu_devices()))))
    names = (name.strip() for name in given.split(","))
    # As CUDA does: whatever follows an invalid name is ignored.
    return tuple(itertools.takewhile(lambda name: name not in ("", "-1"), names))


def _gpu_devices() -> list[Path]:
    return list(Path("/dev").glob("nvidia[0-9]*"))


def amx_present() -> bool:
    """Return whether the processor multiplies matrices of bf16 in hardware (AMX), as far as the system says."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return False
    return " amx_bf16 " in f"{first} ".replace("\n", " ")


def command_for(extra: str) -> str:
    """Return the shell command that adds an extra, according to how Linckia was installed."""
    wanted = shlex.quote(f"linckia[{extra}]")
    cpu_only = extra == TORCH and not gpu_present()
    environment = Path(sys.prefix)
    if (script := checkout_script()) is not None:
        return f"LINCKIA_EXTRA={extra} {shlex.quote(str(script))} doctor"
    if (environment / "uv-receipt.toml").exists():
        return f"uv tool install {wanted}" + (" --torch-backend auto" if extra == TORCH else "")
    index = f"--extra-index-url {CPU_INDEX}"
    if (environment / "pipx_metadata.json").exists():
        return f"pipx install --force {wanted}" + (f" --pip-args={shlex.quote(index)}" if cpu_only else "")
    return f"{shlex.quote(sys.executable)} -m pip install {wanted}" + (f" {index}" if cpu_only else "")


def checkout_script() -> Path | None:
    """Return `scripts/linckia` if this code runs from a checkout, else None."""
    root = Path(__file__).resolve().parents[2]
    script = root / "scripts" / "linckia"
    return script if script.is_file() and (root / "pyproject.toml").is_file() else None
