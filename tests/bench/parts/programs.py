"""Finds the programs that benchmarks compare with and that no Python package provides."""

from __future__ import annotations

import shutil

DEBIAN_PACKAGES = {"rg": "ripgrep", "restic": "restic", "borg": "borgbackup"}


def require(*programs: str) -> None:
    """Check that the programs are installed; call this before anything slow.

    Raises SystemExit, naming the packages to install, if a program is missing.
    """
    if missing := [program for program in programs if shutil.which(program) is None]:
        packages = " ".join(DEBIAN_PACKAGES[program] for program in missing)
        raise SystemExit(
            f"This benchmark compares with {' and '.join(missing)}, not found in PATH.\n"
            f"Debian, Ubuntu: apt install {packages}"
        )
