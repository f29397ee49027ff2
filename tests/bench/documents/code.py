"""The graph of a project's code: how fast it is parsed, how much is found, and a sample of calls to be judged by eye.

The code below a directory is stored and parsed, its nodes and edges counted.  For each sampled call of which the graph
is certain it prints the line that calls and the line that is called: precision is what a person finds right of them.
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import cast

import apsw
import trio

from proto.frames import pack_body, read_body
from proto.ops.decode import CALLS, CODE_EXTENSIONS, DecodeCode, ParsedCode
from services.decode.symbols import parse_all
from services.documents.add.add import Adding, add_changes
from services.documents.add.folders import Walk
from services.documents.code.parsing import Parsing
from services.documents.code.relations import Edge, Relations, file_node, symbol_node
from services.documents.store.rows import Given
from services.documents.store.store import Store
from services.runtime.handlers import Environment
from services.runtime.roots import Roots


class _Decode:
    """What `decode` does, in this process, with its messages written and read."""

    async def call(self, params: DecodeCode) -> ParsedCode:
        given = read_body(pack_body(params), DecodeCode)
        made: ParsedCode = read_body(pack_body(parse_all(given.contents)), ParsedCode)
        await trio.lowlevel.checkpoint()
        return made


def code(directory: Path, sample: int, seed: int) -> None:
    """Print the figures and the sample."""
    with tempfile.TemporaryDirectory() as folder:
        trio.run(_measure, Path(folder), directory, sample, seed)


async def _measure(folder: Path, directory: Path, sample: int, seed: int) -> None:
    store = Store(folder)
    roots = Roots([directory])
    adding = Adding(store, roots)
    walk = Walk(str(directory), roots, include=[f"*{extension}" for extension in sorted(CODE_EXTENSIONS)])
    files = await add_changes(adding, walk, Given())
    size = await store.read(_size)
    parsing = Parsing(cast("Environment", _Decode()), store)
    began = time.process_time()
    while await parsing.step():
        pass
    parsed = time.process_time() - began
    began = time.process_time()
    nodes, edges = await store.read(_whole)
    resolved = time.process_time() - began
    print(f"{files} files of code, {size / 2**20:.1f} MiB: parsed in {parsed:.1f} s of CPU"
          f" ({files / parsed:.0f} files/s, {size / parsed / 1e6:.1f} MB/s),"
          f" related in {resolved:.1f} s")  # fmt: skip
    print(f"{sum(nodes.values())} nodes:", ", ".join(f"{count} {kind}" for kind, count in nodes.most_common()))
    counts = Counter((edge.relation, edge.certainty) for edge in edges)
    print(
        f"{len(edges)} edges:", ", ".join(f"{count} {' '.join(kind).strip()}" for kind, count in counts.most_common())
    )
    certain = [edge for edge in edges if edge.relation == CALLS and edge.certainty == "resolved"]
    for number, edge in enumerate(random.Random(seed).sample(certain, min(sample, len(certain))), 1):
        print(f"\n{number}. {_shown(edge, directory)}")
    store.close()


def _size(db: apsw.Connection) -> int:
    return int(str(db.execute("SELECT sum(size) FROM document JOIN object ON object.id=document.object").get))


def _whole(db: apsw.Connection) -> tuple[Counter[str], list[Edge]]:
    relations = Relations(db)
    nodes: Counter[str] = Counter()
    edges: dict[tuple[str, str, str], Edge] = {}
    for (path,) in db.execute("SELECT path FROM document ORDER BY id").fetchall():
        doc = relations.paths.exact(str(path))
        assert doc is not None
        for node in (file_node(doc), *(symbol_node(doc, symbol) for symbol in relations.symbols(doc.object))):
            nodes[node.type] += 1
            for edge in relations.out(node):
                edges[edge.source.key, edge.relation, edge.target.key] = edge
    return nodes, list(edges.values())


def _shown(edge: Edge, directory: Path) -> str:
    """Who calls, with the lines that name the callee; and who is called."""
    source, target = edge.source, edge.target
    assert source.doc is not None
    assert target.doc is not None
    assert target.symbol is not None
    lines = Path(source.doc.path).read_text(errors="replace").split("\n")
    first, last = (1, len(lines)) if source.symbol is None else (source.symbol.first, source.symbol.last)
    name = re.compile(rf"\b{re.escape(target.symbol.name)}\b\W*\(")
    calling = [f"    {n}: {lines[n - 1].strip()}" for n in range(first, last + 1) if name.search(lines[n - 1])]
    called = Path(target.doc.path).read_text(errors="replace").split("\n")[target.symbol.first - 1].strip()
    where = f"{Path(source.doc.path).relative_to(directory)} {source.label}"
    there = f"{Path(target.doc.path).relative_to(directory)} {target.label}"
    return "\n".join([where, *calling[:4], f" -> {there}:{target.symbol.first}: {called}"])
