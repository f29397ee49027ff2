"""The grammars of languages, and what of their syntax trees is a definition, a call or an import.

A language is a row of `proto.ops.decode.LANGUAGES`, the package of its grammar in pyproject.toml, and a query in the
notation of tree-sitter, `queries/NAME.scm`: `@name` is what a definition is called, the capture around it its kind;
`@owner` the type that a method stands in, where that is not around it; `@call` a callee's name and `@on` what it is
called on; `@import` what is imported; `@base` what a class extends.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Final

import tree_sitter

_QUERIES: Final = Path(__file__).parent / "queries"
_PARTS: Final = {
    "javascript": ("javascript", "javascript_classes"),
    "typescript": ("javascript", "typescript"),
    "tsx": ("javascript", "typescript"),
    "cpp": ("c", "cpp"),
}
"""The queries of a language, where they are not the one of its name."""
_GRAMMARS: Final = {
    "typescript": ("tree_sitter_typescript", "language_typescript"),
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "csharp": ("tree_sitter_c_sharp", "language"),
    "php": ("tree_sitter_php", "language_php"),
}
"""Module and function, where these are not `tree_sitter_NAME` and `language`."""


@functools.cache
def loaded(name: str) -> tuple[tree_sitter.Language, tree_sitter.Query]:
    """Of the language of that name.  Loading one costs milliseconds, and memory: only those that are met."""
    module, function = _GRAMMARS.get(name, (f"tree_sitter_{name}", "language"))
    grammar = tree_sitter.Language(getattr(importlib.import_module(module), function)())
    parts = ((_QUERIES / f"{part}.scm").read_text() for part in _PARTS.get(name, (name,)))
    return grammar, tree_sitter.Query(grammar, "".join(parts))
