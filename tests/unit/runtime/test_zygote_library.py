"""The imports of a zygote: requested ones first, the rest in order, and failures are reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from services.runtime.zygote import Library


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names = [f"library_{name}" for name in ("a", "b", "c")]
    for name in names:
        (tmp_path / f"{name}.py").write_text(
            "def warm_up():\n    import builtins\n    builtins.loaded.append(__name__)\n"
        )
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.loaded", [], raising=False)
    return names


def loaded() -> list[str]:
    import builtins

    found: list[str] = builtins.loaded  # type: ignore[attr-defined]  # the fixture's
    return found


def test_requested_modules_are_loaded_before_others(modules: list[str]) -> None:
    library = Library(modules)
    library.load_next(modules[2])
    assert loaded() == [modules[2]]
    # Repeated requests load a module once; a module of no service of this zygote is left to the child.
    library.load_next(modules[2])
    library.load_next("no.service.of.this")
    assert loaded() == [modules[2]]
    library.load_next()
    assert not library.report().complete
    library.load_next()
    assert loaded() == [modules[2], modules[0], modules[1]]
    assert library.report().complete


def test_module_that_cannot_be_loaded_is_reported_and_left_out(modules: list[str]) -> None:
    library = Library(["no.such.module", *modules])
    while not library.is_complete():
        library.load_next()
    assert loaded() == modules
    assert list(library.report().failed) == ["no.such.module"]


def test_on_demand_modules_are_loaded_only_when_requested(modules: list[str]) -> None:
    library = Library(modules[:1], on_demand=[modules[0], modules[1], modules[2]])
    library.load_next()
    assert library.is_complete()
    library.load_next(modules[2])
    library.load_next(modules[2])
    assert loaded() == [modules[0], modules[2]]
