"""The manifests of services: one per folder below `services`, and those of external packages (`--with PACKAGE`).

They are imported by name, and import only `proto` (`proto.manifest`), so that no service code runs here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kernel.configure.config import ConfigError
from proto.json_types import Layer
from proto.manifest import GIB, Manifest, Template
from proto.names import module

SERVICES = module("services")


class PackagedManifest(NamedTuple):
    """A manifest, and the package that contains it."""

    package: str
    manifest: Manifest

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of an external package; empty for built-in services, which are part of the installation."""
        spec = None if self.package.startswith(f"{SERVICES}.") else importlib.util.find_spec(self.package)
        return () if spec is None else tuple(Path(each).resolve() for each in spec.submodule_search_locations or ())

    def modules(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the full names of modules that the manifest names."""
        return tuple(f"{self.package}.{name}" for name in names)


class PackagedTemplate(NamedTuple):
    """A template of manifests, and the package that contains it."""

    package: str
    template: Template

    @property
    def module(self) -> str:
        """Full name of the module of its services."""
        return f"{self.package}.{self.template.module}"

    def made(self, name: str, table: Layer) -> PackagedManifest:
        """Return the manifest for a table of the settings. Raises ValueError, which names the setting."""
        return PackagedManifest(self.package, self.template.manifest(name, table))


@functools.cache
def built_in() -> tuple[PackagedManifest, ...]:
    """Return the built-in services, in start order."""
    places = importlib.import_module(SERVICES).__path__
    folders = sorted(file.parent.name for place in places for file in Path(place).glob("*/manifest.py"))
    found = [each for folder in folders for each in _in_package(f"{SERVICES}.{folder}")]
    return tuple(sorted(found, key=lambda each: (each.manifest.order, each.manifest.name)))


def served(packages: Iterable[str] = ()) -> tuple[PackagedManifest, ...]:
    """Return the built-in services, then those of external packages in the order given. Raises ConfigError."""
    found = list(built_in())
    for package in packages:
        for each in _of_package(package):
            if any(each.manifest.name == other.manifest.name for other in found):
                raise ConfigError(f"--with {package}: there already is a service {each.manifest.name!r}; rename it")
            found.append(each)
    return tuple(found)


def templates(packages: Iterable[str] = ()) -> tuple[PackagedTemplate, ...]:
    """Return the templates of the built-in services, then those of external packages in the order given."""
    names = [*dict.fromkeys(each.package for each in built_in()), *packages]
    modules = [(name, importlib.import_module(f"{name}.manifest")) for name in names if _has_manifest(name)]
    return tuple(PackagedTemplate(name, each) for name, module in modules for each in getattr(module, "TEMPLATES", ()))


def _has_manifest(package: str) -> bool:
    return importlib.util.find_spec(f"{package}.manifest") is not None


def _of_package(package: str) -> list[PackagedManifest]:
    """Return the services of a package.

    A package without a manifest is one service with the package's name, which may access only its own folder.
    `PACKAGE.operations` then declares its operations, and `PACKAGE.main` defines `open_service`.
    """
    try:
        if _has_manifest(package):
            return _in_package(package)
        name = package.rpartition(".")[2]
        return [PackagedManifest(package, Manifest(name=name, ops_modules=("operations",), disk_limit_bytes=GIB))]
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(f"--with {package}: its manifest cannot be imported: {error}; see PYTHONPATH") from None


def _in_package(package: str) -> list[PackagedManifest]:
    return [PackagedManifest(package, each) for each in importlib.import_module(f"{package}.manifest").MANIFESTS]
