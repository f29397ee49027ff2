"""setuptools, with the links of the README made absolute in the package's description: PyPI does not resolve others."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta  # type: ignore[import-untyped]  # its stubs are a package of their own

REPOSITORY = "https://github.com/linckia/linckia"
DESCRIPTION = Path("README.pypi.md")
"""Made for the time of a build, and named in pyproject.toml as the description."""

Settings = Mapping[str, Any] | None

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str) -> str:
    """Return Markdown with absolute links instead of relative ones."""
    return _LINK.sub(rf"]({REPOSITORY}/blob/main/\1)", text)


@contextlib.contextmanager
def _described() -> Iterator[None]:
    DESCRIPTION.write_text(absolute(Path("README.md").read_text(encoding="utf-8")), encoding="utf-8")
    try:
        yield
    finally:
        DESCRIPTION.unlink()


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return []


get_requires_for_build_sdist = get_requires_for_build_editable = get_requires_for_build_wheel


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    with _described():
        return str(build_meta.build_sdist(sdist_directory, config_settings))


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    with _described():
        return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


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
