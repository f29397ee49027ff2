"""Throw-away environments for peers that do not get along with our own libraries.

Each is a virtual environment of its own in the user's cache folder, made once; behind its own packages it sees ours, so
that torch (gigabytes) is neither downloaded nor kept twice and both sides compute with the same one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path


def environment(name: str, packages: Sequence[str], alone: Sequence[str] = ()) -> Path:
    """The interpreter of the environment `name`; made where it is not there yet.

    Args:
        packages: installed with what they depend on.
        alone: installed without, since they depend on torch or on versions that they do not need.

    Raises:
        subprocess.CalledProcessError: pip failed.
    """
    mark = hashlib.sha256(repr((packages, alone, sys.version, sys.prefix)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    folder = cache / "linckia-bench" / f"{name}-{mark}"
    python = folder / "bin" / "python"
    done = folder / "done"
    if not done.exists():
        print(f"installing {name} into {folder} …", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        if alone:
            subprocess.run([*pip, "--no-deps", *alone], check=True)
        site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        # Its name sorts last, and what stands in a .pth file comes after the environment's own packages.
        (site / "zz-ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        done.touch()
    return python
