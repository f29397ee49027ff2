"""No module imports another that imports it, be it late, for types alone, or through others."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp


def circle(imports: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, if there is any, each imported by the next."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_an_import_cycle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_imports_have_no_cycles() -> None:
    graph = grimp.build_graph("kernel", "proto", "services", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 500
    assert circle(imports) == []
