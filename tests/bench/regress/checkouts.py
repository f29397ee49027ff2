"""The two checkouts that are compared, and the set-up of the older one.

A checkout is started by its own `scripts/linckia` and reached through MCP and its command line only, so that a commit
with another layout can be compared too.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.system.running import REPOSITORY


@dataclass(frozen=True)
class Checkout:
    """A folder with Linckia's sources and its own environment."""

    name: str
    folder: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs `linckia` from this checkout."""
        return [str(self.folder / "scripts" / "linckia"), *arguments]

    def version(self) -> str:
        """Return what `linckia --version` prints. The first call sets the checkout up, which may take minutes."""
        done = subprocess.run(self.command("--version"), stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"scripts/bench regress: {self.folder} could not be set up (see above)")
        return done.stdout.strip()


def this_checkout() -> Checkout:
    return Checkout("this", REPOSITORY)


def base_checkout(commit: str | None, folder: Path | None) -> Checkout:
    """Return the checkout of a commit, which is made if the cache has none, or the one in a folder."""
    if folder is not None:
        if not (folder / "scripts" / "linckia").is_file():
            raise SystemExit(f"scripts/bench regress: {folder} is not a checkout of Linckia (no scripts/linckia)")
        return Checkout("base", folder.resolve())
    assert commit is not None
    whole = _git("-C", str(REPOSITORY), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    kept = cache_folder() / whole
    if not (kept / "scripts" / "linckia").is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # A clone, since `git worktree` would leave an entry in this repository after the cache is deleted.
        if not (kept / ".git").is_dir():
            _git("clone", "--quiet", "--shared", "--no-checkout", str(REPOSITORY), str(kept))
        _git("-C", str(kept), "checkout", "--quiet", "--detach", whole)
    return Checkout("base", kept)


def cache_folder() -> Path:
    """Return the folder that keeps the checkouts of earlier runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache, "linckia", "regress")


def commit_of(folder: Path) -> str:
    """Return the short name of the commit of a checkout."""
    return _git("-C", str(folder), "describe", "--always", "--dirty", "--exclude", "*")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"scripts/bench regress: git {arguments[-1]}: {done.stderr.strip() or 'unknown commit'}")
    return done.stdout.strip()
