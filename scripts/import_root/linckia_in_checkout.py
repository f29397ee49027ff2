"""Gives the modules of a checkout under the names that they have in an installation, for packages of others.

The source imports `kernel`, `proto` and `services`, as the folders are called, so that every tool can follow its
imports. An installation has one top-level package, `linckia`, and the build writes its name into the imports
(`scripts/build_backend.py`). A service of another package imports `linckia.proto` in both; here it gets the module
`proto` itself, not a second one.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys

# Every interpreter of a checkout imports this at its start: `importlib.abc` and `typing` would double what that costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import InspectLoader, MetaPathFinder
    from types import CodeType, ModuleType

    class _Base(MetaPathFinder, InspectLoader): ...
else:
    _Base = object

FOLDERS = ("kernel", "proto", "services")


def _own(name: str) -> str:
    return name.partition(".")[2]


def _found(own: str) -> importlib.machinery.ModuleSpec | None:
    from importlib.util import find_spec

    return find_spec(own)


class _Installed(_Base):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, own = name.partition(".")
        if package != "linckia" or (own and own.partition(".")[0] not in FOLDERS):
            return None
        found = _found(own) if own else None
        is_package = not own or (found is not None and found.submodule_search_locations is not None)
        origin = None if found is None else found.origin
        return importlib.machinery.ModuleSpec(name, self, origin=origin, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        if not (own := _own(spec.name)):
            return None
        module = importlib.import_module(own)
        # The import system is about to give it the spec of the other name.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None and module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m linckia.…`, as clients were told before."""
        spec = _found(_own(fullname))
        code: CodeType | None = spec.loader.get_code(_own(fullname)) if spec is not None and spec.loader else None  # type: ignore[attr-defined]
        return code

    def get_source(self, fullname: str) -> str | None:
        return None


# First, since the usual one would find the files of these packages, and load each a second time.
sys.meta_path.insert(0, _Installed())
