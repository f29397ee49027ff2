"""The nodes and edges of the document graph, and the index rows they are derived from."""

from __future__ import annotations

from dataclasses import dataclass

from services.documents.code.imports import Doc


@dataclass(frozen=True, slots=True)
class Definition:
    """A row of `symbol`.  `parent` is 0 at the top level of the file."""

    id: int
    object: int
    name: str
    qualified: str
    kind: str
    first: int
    last: int
    parent: int
    family: str


@dataclass(frozen=True, slots=True)
class CodeNode:
    """A file, a definition in a file, or a module that is not stored."""

    key: str
    type: str
    label: str
    doc: Doc | None = None
    symbol: Definition | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge.  `certainty` is `resolved` or `ambiguous` for calls, otherwise empty."""

    source: CodeNode
    relation: str
    target: CodeNode
    certainty: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    object: int
    symbol: int
    kind: str
    name: str
    target: str
    tentative: bool


def file_node(doc: Doc) -> CodeNode:
    return CodeNode(f"file:{doc.path}", "file", doc.name, doc)


def symbol_node(doc: Doc, symbol: Definition) -> CodeNode:
    return CodeNode(f"symbol:{doc.path}#{symbol.qualified}@{symbol.first}", symbol.kind, symbol.qualified, doc, symbol)


def module_node(name: str) -> CodeNode:
    return CodeNode(f"module:{name}", "module", name)
