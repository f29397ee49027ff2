"""Separate environments for peers whose dependencies conflict with ours.

Each is a virtual environment in the user's cache folder, created once. After its own packages it sees ours, so that
torch (gigabytes) is not downloaded or stored twice, and both sides compute with the same version.
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
    """Return the interpreter of the environment `name`, creating the environment if necessary.

    Args:
        packages: installed with their dependencies.
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
        # Its name sorts last, and the paths in a .pth file come after the environment's own packages.
        (site / "zz-ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        done.touch()
    return python
