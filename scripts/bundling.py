"""Builds `linckia.mcpb`, which clients for MCP bundles install with a click.

scripts/bundle [--wheel FILE] [OUT]

It contains a launcher that starts an installed Linckia. With `--wheel`, it also contains the wheel, which the launcher
starts by uvx or pipx if Linckia is not installed. The same content gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "import_root"))

from kernel import VERSION  # noqa: E402

MANIFEST_VERSION = "0.3"
DATE = (1980, 1, 1, 0, 0, 0)
"""The first date that a zip file can have."""


def manifest() -> dict[str, Any]:
    """Return the content of `manifest.json`."""
    about = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))
    home = about["repository"]["url"]
    return {
        "manifest_version": MANIFEST_VERSION,
        "name": "linckia",
        "display_name": about["title"],
        "version": VERSION,
        "description": about["description"],
        "long_description": "Starts `linckia stdio`: an installed Linckia, or the wheel in the bundle by uv or pipx.",
        "author": {"name": "The Linckia authors", "url": home},
        "repository": {"type": "git", "url": f"{home}.git"},
        "homepage": home,
        "documentation": f"{home}/tree/main/docs",
        "support": f"{home}/issues",
        "license": "Apache-2.0",
        "keywords": ["search", "memory", "documents", "files"],
        "server": {
            "type": "node",
            "entry_point": "server/launch.js",
            "mcp_config": {
                "command": "node",
                "args": ["${__dirname}/server/launch.js", "${user_config.folders}"],
                "env": {"LINCKIA_READ_ONLY": "${user_config.read_only}"},
            },
        },
        "tools_generated": True,
        "prompts_generated": True,
        "compatibility": {"platforms": ["linux"], "runtimes": {"node": ">=18.0.0"}},
        "user_config": {
            "folders": {
                "type": "directory",
                "title": "Folders",
                "description": "Folders whose files Linckia may read and change",
                "multiple": True,
                "required": False,
            },
            "read_only": {
                "type": "boolean",
                "title": "Read only",
                "description": "Clients may change nothing",
                "default": False,
                "required": False,
            },
        },
    }


def build(out: Path, wheel: Path | None) -> None:
    """Write the bundle. Raises OSError."""
    files = {
        "manifest.json": json.dumps(manifest(), indent=2).encode() + b"\n",
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        "server/launch.js": (ROOT / "scripts" / "bundled" / "launch.js").read_bytes(),
    }
    if wheel is not None:
        files[f"server/{wheel.name}"] = wheel.read_bytes()
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, DATE)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bundle", description="Build linckia.mcpb.")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "linckia.mcpb", help="the file to write")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="include this wheel of Linckia")
    arguments = parser.parse_args()
    if arguments.wheel is not None and not (arguments.wheel.is_file() and arguments.wheel.suffix == ".whl"):
        parser.error(f"--wheel: {arguments.wheel} is no wheel; `pip wheel --no-deps .` builds one")
    build(arguments.out, arguments.wheel)
    print(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
