"""The manifests of services: of each folder below `services`, and of packages from outside (`--with PACKAGE`).

They are imported by name, and import only `proto` (`proto.manifest`), so that no code of a service runs here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from linckia.kernel.settings import ConfigError
from linckia.proto.manifest import GIB, Manifest

SERVICES = "linckia.services"


class Found(NamedTuple):
    """A manifest, and the package that it lies in."""

    package: str
    manifest: Manifest

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where a package from outside lies; none for one of the system's, which lies in the installation."""
        spec = None if self.package.startswith(f"{SERVICES}.") else importlib.util.find_spec(self.package)
        return () if spec is None else tuple(Path(each).resolve() for each in spec.submodule_search_locations or ())

    def modules(self, names: Iterable[str]) -> tuple[str, ...]:
        """Full names of modules that the manifest names."""
        return tuple(f"{self.package}.{name}" for name in names)


@functools.cache
def of_system() -> tuple[Found, ...]:
    """The services of every system, in start order."""
    places = importlib.import_module(SERVICES).__path__
    folders = sorted(file.parent.name for place in places for file in Path(place).glob("*/manifest.py"))
    found = [each for folder in folders for each in _in_package(f"{SERVICES}.{folder}")]
    return tuple(sorted(found, key=lambda each: (each.manifest.order, each.manifest.name)))


def served(packages: Iterable[str] = ()) -> tuple[Found, ...]:
    """The same, and then those of packages from outside, in the order given.  Raises ConfigError."""
    found = list(of_system())
    for package in packages:
        for each in _of_package(package):
            if any(each.manifest.name == other.manifest.name for other in found):
                raise ConfigError(f"--with {package}: there is a service {each.manifest.name!r} already; rename it")
            found.append(each)
    return tuple(found)


def _of_package(package: str) -> list[Found]:
    """Without a manifest, a package is one service of its own name, which may touch nothing but its folder.

    `PACKAGE.operations` declares its operations then, and `PACKAGE.main` has `open_service`.
    """
    try:
        if importlib.util.find_spec(f"{package}.manifest") is not None:
            return _in_package(package)
        name = package.rpartition(".")[2]
        return [Found(package, Manifest(name=name, ops_modules=("operations",), disk_limit_bytes=GIB))]
    except (ImportError, ValueError, AttributeError) as error:
        raise ConfigError(f"--with {package}: its manifest cannot be imported: {error}; see PYTHONPATH") from None


def _in_package(package: str) -> list[Found]:
    return [Found(package, each) for each in importlib.import_module(f"{package}.manifest").MANIFESTS]
