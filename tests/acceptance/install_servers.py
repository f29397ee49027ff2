"""Installs real MCP servers from npm and PyPI for the acceptance tests, into a folder that the tests look into.

    python -m tests.acceptance.install_servers [NAME …]

The folder is `linckia/mcp-servers` in the user's cache, unless `TEST_MCP_SERVERS` names another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

NPM = {
    "everything": "@modelcontextprotocol/server-everything@2026.8.31",
    "filesystem": "@modelcontextprotocol/server-filesystem@2026.8.31",
    "memory": "@modelcontextprotocol/server-memory@2026.8.31",
    "sequential-thinking": "@modelcontextprotocol/server-sequential-thinking@2026.8.31",
    "playwright": "@playwright/mcp@0.0.83",
}

PYPI = {
    "git": ["mcp-server-git==2026.10.19"],
    "fetch": ["mcp-server-fetch==2026.10.24"],
    "time": ["mcp-server-time==2026.10.19"],
    # It does not run with the SDK's second version.
    "sqlite": ["mcp-server-sqlite==2025.4.25", "mcp<2"],
    "fastmcp": ["fastmcp==4.2.3"],
}
"""The requirements of each server; each has an environment of its own."""


def folder() -> Path:
    """Return the folder of the installed servers."""
    named = os.environ.get("TEST_MCP_SERVERS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else cache / "linckia" / "mcp-servers"


def script(server: str, name: str) -> Path:
    """Return the path of a server's command."""
    return folder() / server / ("node_modules/.bin" if server in NPM else "bin") / name


def install(server: str) -> None:
    """Install one server. Raises CalledProcessError."""
    target = folder() / server
    if server in NPM:
        target.mkdir(parents=True, exist_ok=True)
        npm = shutil.which("npm") or sys.exit("npm is not installed")
        quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error"]
        subprocess.run([npm, "install", "--prefix", str(target), *quiet, NPM[server]], check=True)
    else:
        venv.create(target, with_pip=True)
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PYPI[server]], check=True)


def main() -> None:
    """Install the named servers, or all."""
    for server in sys.argv[1:] or [*NPM, *PYPI]:
        print(f"{server}: installing", file=sys.stderr)
        install(server)


if __name__ == "__main__":
    main()
