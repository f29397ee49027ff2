"""setuptools, for a source whose folders are packages, and an installation that has one package, `linckia`.

The source imports `kernel`, `proto` and `services`, as the folders are called, so that every tool can follow its
imports. Before a build, they are copied below `linckia` in BUILD_ROOT, with its name written into their imports.
Modules that are named at run time get it from `proto.names`. The links of the README are made absolute in the package's
description, since PyPI does not resolve others.

The same source gives the same bytes, wherever and whenever it is built by the same setuptools: archives have one time
(SOURCE_DATE_EPOCH, by default that of hatchling), one owner, and permissions that no umask changes.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta  # type: ignore[import-untyped]  # its stubs are a package of their own

REPOSITORY = "https://github.com/linckia/linckia"
DESCRIPTION = Path("README.pypi.md")
"""Made for the time of a build, and named in pyproject.toml as the description."""

BUILD_ROOT = Path("scripts/build_root")
"""Made for the time of a build, and named in pyproject.toml as the folder of the package."""

FOLDERS = ("kernel", "proto", "services")

EPOCH = "1580601600"
"""2020-02-02, the time of files in the archives that hatchling and flit build."""

Settings = Mapping[str, Any] | None

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str) -> str:
    """Return Markdown with absolute links instead of relative ones."""
    return _LINK.sub(rf"]({REPOSITORY}/blob/main/\1)", text)


_FROM = re.compile(
    rf"^(\s*(?:from|import) )((?:{'|'.join(FOLDERS)})(?:\.[\w.]+)?(?= import |\s*$| as |  #))", re.MULTILINE
)
_WHOLE = re.compile(rf"^(\s*)import ({'|'.join(FOLDERS)})$", re.MULTILINE)


def installed(source: str) -> str:
    """Return the source of a module with its imports as they are in an installation."""
    return _FROM.sub(r"\1linckia.\2", _WHOLE.sub(r"\1from linckia import \2", source))


def permissions(mode: int) -> int:
    """Return the permissions of a file or folder as they would be with the usual umask."""
    return 0o755 if mode & 0o100 else 0o644


def _repack_wheel(archive: Path) -> None:
    """Give a wheel the same bytes whoever has made it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            data = old.read(member)
            member.external_attr = (stat.S_IFREG | permissions(member.external_attr >> 16)) << 16
            new.writestr(member, data)
    archive.write_bytes(packed.getvalue())


def _repack_sdist(archive: Path, epoch: int) -> None:
    """Give a compressed tar file the same bytes whoever has made it, in whatever order."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.mode, member.pax_headers = epoch, permissions(member.mode), {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as compressed:
        compressed.write(packed.getvalue())


@contextlib.contextmanager
def _described() -> Iterator[None]:
    os.environ.setdefault("SOURCE_DATE_EPOCH", EPOCH)
    DESCRIPTION.write_text(absolute(Path("README.md").read_text(encoding="utf-8")), encoding="utf-8")
    try:
        package = BUILD_ROOT / "linckia"
        shutil.rmtree(BUILD_ROOT, ignore_errors=True)
        for folder in FOLDERS:
            shutil.copytree(folder, package / folder, ignore=shutil.ignore_patterns("__pycache__"))
        (package / "__init__.py").touch()
        for module in package.rglob("*.py"):
            module.write_text(installed(module.read_text(encoding="utf-8")), encoding="utf-8")
        yield
    finally:
        DESCRIPTION.unlink()
        shutil.rmtree(BUILD_ROOT, ignore_errors=True)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return []


get_requires_for_build_sdist = get_requires_for_build_editable = get_requires_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    with _described():
        name = str(build_meta.build_sdist(sdist_directory, config_settings))
        _repack_sdist(Path(sdist_directory, name), int(os.environ["SOURCE_DATE_EPOCH"]))
        return name


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    with _described():
        name = str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))
        _repack_wheel(Path(wheel_directory, name))
        return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    with _described():
        return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    with _described():
        return str(build_meta.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Settings = None) -> str:
    with _described():
        return str(build_meta.prepare_metadata_for_build_editable(metadata_directory, config_settings))
