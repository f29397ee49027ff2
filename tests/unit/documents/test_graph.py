"""The graph shows the definitions, calls and imports of code, as far as names reveal them; ambiguous edges say so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams, OperationError, Quarantined
from proto.operation import operation_of
from proto.ops.decode import DecodeCode, ParsedCode
from proto.ops.documents.reading import DocumentsGet
from proto.ops.graph import Direction, GraphNeighbors
from services.decode import main as decode
from services.decode.symbols import parse, parse_all
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete
from services.documents.operations.find import DocumentsGraph
from services.documents.operations.listing import DocumentsStatus
from services.graph.main import open_service as open_graph
from services.runtime.handlers import Context, Environment, Handlers
from tests.in_process import Bench
from tests.unit.documents.rig import add_text, documents, tree
from tests.waiting import until

FILES: dict[str, str | bytes] = {
    "app/main.py": "from app.util import helper\nimport json\n\n"
    "def run():\n    helper()\n    json.dumps(1)\n    once()\n",
    "app/util.py": "def helper():\n    return Tool().use()\n\n\nclass Tool:\n    def use(self):\n"
    "        return self.sharpen()\n\n    def sharpen(self):\n        return 1\n",
    "one.py": "def once():\n    pass\n",
    "two.py": "def once():\n    pass\n",
    "README.md": "See [the code](app/main.py), [[two.py]] and [nothing](gone.md).\n",
    "data.bin": b"\0\1\2",
}


async def edges(bench: Bench, root: Path, **params: Any) -> set[tuple[str, str, str, str | None]]:
    """Without the root and the lines."""

    def short(key: str) -> str:
        return key.replace(f"{root}/", "").split("@")[0]

    answer = await bench.call(DocumentsGraph(**params))
    return {(short(edge.source), edge.relation, short(edge.target), edge.certainty) for edge in answer.edges}


async def test_definitions_imports_calls_and_links_are_edges(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    tree(root, FILES)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert await edges(bench, root, name="app/main.py") == {
            ("file:app/main.py", "DEFINES", "symbol:app/main.py#run", None),
            ("file:app/main.py", "IMPORTS", "file:app/util.py", None),
            ("file:app/main.py", "IMPORTS", "module:json", None),
        }
        assert await edges(bench, root, name="main.py", relation="calls") == {
            ("symbol:app/main.py#run", "CALLS", "symbol:app/util.py#helper", "resolved"),
            ("symbol:app/main.py#run", "CALLS", "symbol:one.py#once", "ambiguous"),
            ("symbol:app/main.py#run", "CALLS", "symbol:two.py#once", "ambiguous"),
        }
        assert await edges(bench, root, name="util.py", relation="CALLS") == {
            ("symbol:app/util.py#helper", "CALLS", "symbol:app/util.py#Tool.use", "resolved"),
            ("symbol:app/util.py#helper", "CALLS", "symbol:app/util.py#Tool", "resolved"),
            ("symbol:app/util.py#Tool.use", "CALLS", "symbol:app/util.py#Tool.sharpen", "resolved"),
        }
        assert await edges(bench, root, name="util.py", relation="IMPORTS", reverse=True) == {
            ("file:app/main.py", "IMPORTS", "file:app/util.py", None)
        }
        helper = f"symbol:{root}/app/util.py#helper"
        assert await edges(bench, root, node_key=helper, reverse=True, relation="CALLS") == {
            ("symbol:app/main.py#run", "CALLS", "symbol:app/util.py#helper", "resolved")
        }
        assert await edges(bench, root, name="README.md") == {
            ("file:README.md", "LINKS_TO", "file:app/main.py", None),
            ("file:README.md", "LINKS_TO", "file:two.py", None),
        }
        assert await edges(bench, root, node_key="module:json", reverse=True) == {
            ("file:app/main.py", "IMPORTS", "module:json", None)
        }
        deep = await bench.call(DocumentsGraph(name="README.md", depth=3))
        assert {node.distance for node in deep.nodes} == {1, 2, 3}
        assert deep.connected_nodes == deep.nodes
        assert deep.node_type_counts["function"] >= 3
        assert not deep.truncated
        cut = await bench.call(DocumentsGraph(name="README.md", depth=3, limit=2))
        assert (len(cut.nodes), cut.truncated) == (2, True)
        # Edges used by a pipeline: a document that is stored comes before a module that is not.
        first = await bench.call(DocumentsGraph(name="app/main.py", relation="IMPORTS", depth=2))
        assert first.nodes[0].path == f"{root}/app/util.py"
        assert (await bench.call(DocumentsGet(hash=first.nodes[0].hash))).name == "util.py"
        got = await bench.call(DocumentsGet(name="util.py", graph=True, depth=1))
        assert {node.label for node in got.related} == {"helper", "Tool", "Tool.use", "Tool.sharpen", "main.py"}
        assert got.graph_enabled
        nothing = await bench.call(DocumentsGet(name="data.bin", graph=True))
        assert (nothing.related, nothing.edges, nothing.degraded) == ([], [], [])


INHERITED: dict[str, str | bytes] = {
    "base.py": "class Base:\n    def step(self):\n        pass\n\n    def stop(self):\n        pass\n",
    "mid.py": "import base\n\nclass Mid(base.Base):\n    def step(self):\n        super().step()\n",
    "leaf.py": "from mid import Mid\nfrom away import Unknown\n\n"
    "class Leaf(Mid):\n    def step(self):\n        super().step()\n        super(Mid, self).step()\n"
    "        self.stop()\n        self.part.split()\n\n"
    "class Half(Unknown, Mid):\n    def run(self):\n        self.step()\n\n"
    "class Split:\n    def split(self):\n        pass\n",
    "over.ts": "class A { go() { } }\nclass B extends A {\n  go() { super.go(); }\n}\n",
    "Over.java": "class C { void go() {} }\nclass D extends C { void go() { super.go(); } }\n",
}


async def test_methods_called_on_self_and_super_are_resolved_in_base_classes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    tree(root, INHERITED)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))

        async def calls(name: str) -> set[tuple[str, str, str | None]]:
            found = await edges(bench, root, name=name, relation="CALLS")
            return {(s.partition("#")[2], t.removeprefix("symbol:"), certainty) for s, _, t, certainty in found}

        assert await calls("mid.py") == {("Mid.step", "base.py#Base.step", "resolved")}
        # The target of `super(Mid, self)`, and calls of methods that strings have, are not guessed; a call is not
        # certain if its target may come from a class that is not stored.
        assert await calls("leaf.py") == {
            ("Leaf.step", "mid.py#Mid.step", "resolved"),
            ("Leaf.step", "base.py#Base.stop", "resolved"),
            ("Half.run", "mid.py#Mid.step", "ambiguous"),
        }
        assert await calls("over.ts") == {("B.go", "over.ts#A.go", "resolved")}
        assert await calls("Over.java") == {("D.go", "Over.java#C.go", "resolved")}


async def test_invalid_graph_queries_are_errors_with_the_correct_form(tmp_path: Path) -> None:
    async with documents(tmp_path) as bench:
        added = await add_text(bench, "a.py", "class A:\n    pass\n")
        with pytest.raises(InvalidParams, match="`hash`, `name` or `node_key`"):
            await bench.call(DocumentsGraph())
        with pytest.raises(InvalidParams, match="DEFINES, CALLS"):
            await bench.call(DocumentsGraph(name="a.py", relation="eats"))
        with pytest.raises(OperationError, match="not found"):
            await bench.call(DocumentsGraph(node_key="symbol:a.py#B"))
        with pytest.raises(OperationError, match="not found"):
            await bench.call(DocumentsGraph(name="b.py"))
        types = await bench.call(DocumentsGraph(list_types=True))
        assert types.node_type_counts == {"file": 1, "class": 1}
        (only,) = (await bench.call(DocumentsGraph(list_type="class"))).nodes
        assert (only.label, only.hash, only.line) == ("A", added.hash, 1)
        with pytest.raises(OperationError, match="there are: file, class"):
            await bench.call(DocumentsGraph(list_type="dragon"))
        by_hash = await bench.call(DocumentsGraph(hash=added.hash))
        assert by_hash.origin is not None
        assert by_hash.origin.node_key == "file:a.py"


LANGUAGES = {
    "ts/util.ts": "export function greet(name: string) { return name; }\nexport interface Named { name: string }\n",
    "ts/main.tsx": "import { greet } from './util';\nexport class App { run() { return greet('x'); } }\n",
    "js/lib.js": "function go() {}\nmodule.exports = { go };\n",
    "js/main.js": "const lib = require('./lib');\nconst start = () => lib.go();\n",
    "go/pkg/pkg.go": "package pkg\n\nfunc Do() {}\n",
    "go/main.go": 'package main\n\nimport "example.org/go/pkg"\n\nfunc main() { pkg.Do() }\n',
    "rs/foo.rs": "pub struct S;\nimpl S { pub fn new() -> S { S } }\npub fn bar() {}\n",
    "rs/main.rs": "mod foo;\nuse foo::S;\nfn main() { foo::bar(); S::new(); }\n",
    "c/x.h": "int twice(int a);\n",
    "c/x.c": '#include "x.h"\nint twice(int a) { return 2 * a; }\n',
    "c/main.c": '#include "x.h"\nint main(void) { return twice(1); }\n',
    "cpp/k.hpp": "namespace n { class K { public: int run() { return go(); } int go(); }; }\n",
    "cpp/k.cpp": '#include "k.hpp"\nint n::K::go() { return 1; }\n',
    "java/a/D.java": "package a; public class D { static void go() {} }\n",
    "java/b/K.java": "package b; import a.D; class K { void run() { D.go(); help(); } void help() {} }\n",
}
EXPECTED = {
    ("file:ts/main.tsx", "IMPORTS", "file:ts/util.ts", None),
    ("symbol:ts/main.tsx#App.run", "CALLS", "symbol:ts/util.ts#greet", "resolved"),
    ("file:js/main.js", "IMPORTS", "file:js/lib.js", None),
    ("symbol:js/main.js#start", "CALLS", "symbol:js/lib.js#go", "resolved"),
    ("file:go/main.go", "IMPORTS", "file:go/pkg/pkg.go", None),
    ("symbol:go/main.go#main", "CALLS", "symbol:go/pkg/pkg.go#Do", "resolved"),
    ("file:rs/main.rs", "IMPORTS", "file:rs/foo.rs", None),
    ("symbol:rs/main.rs#main", "CALLS", "symbol:rs/foo.rs#bar", "resolved"),
    ("symbol:rs/main.rs#main", "CALLS", "symbol:rs/foo.rs#S.new", "resolved"),
    ("file:c/main.c", "IMPORTS", "file:c/x.h", None),
    ("symbol:c/main.c#main", "CALLS", "symbol:c/x.c#twice", "resolved"),
    ("file:cpp/k.cpp", "IMPORTS", "file:cpp/k.hpp", None),
    ("symbol:cpp/k.hpp#n.K.run", "CALLS", "symbol:cpp/k.cpp#K.go", "resolved"),
    ("file:java/b/K.java", "IMPORTS", "file:java/a/D.java", None),
    ("symbol:java/b/K.java#K.run", "CALLS", "symbol:java/a/D.java#D.go", "resolved"),
    ("symbol:java/b/K.java#K.run", "CALLS", "symbol:java/b/K.java#K.help", "resolved"),
}


async def test_each_language_is_read_by_its_own_rules(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    tree(root, LANGUAGES)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        found: set[tuple[str, str, str, str | None]] = set()
        for name in LANGUAGES:
            found |= await edges(bench, root, name=str(root / name), depth=2)
        expected = {(a.replace("#n.K", "#K"), b, c, d) for a, b, c, d in EXPECTED}
        assert expected - {(a.replace("#n.K", "#K"), b, c, d) for a, b, c, d in found} == set()


@pytest.mark.parametrize(
    "extension",
    [
        ".py",
        ".js",
        ".ts",
        ".tsx",
        ".go",
        ".rs",
        ".c",
        ".h",
        ".cpp",
        ".java",
        ".md",
        ".kt",
        ".cs",
        ".swift",
        ".php",
        ".rb",
        ".lua",
        ".sh",
        ".sql",
        ".scala",
    ],
)
def test_any_bytes_can_be_parsed(extension: str) -> None:
    for data in (b"", b"\xff\xfe\0", b"(" * 20_000, b"def f(:\n class {" * 500, "π = λ(\u2028)".encode()):
        assert parse(data, extension) is not None


async def test_code_that_kills_the_decoder_has_no_symbols_and_other_files_keep_theirs(tmp_path: Path) -> None:
    @asynccontextmanager
    async def open_deadly(env: Environment) -> AsyncIterator[Handlers]:
        async def parse_or_die(params: DecodeCode, ctx: Context) -> ParsedCode:
            if any(b"deadly" in one.data for one in params.contents):
                raise Quarantined("service decode died (killed by SIGSEGV) while serving decode_code")
            return parse_all(params.contents)

        async with decode.open_service(env) as handlers:
            handlers.by_name["decode_code"] = operation_of(DecodeCode), parse_or_die
            yield handlers

    async with documents(tmp_path, {"decode": open_deadly}) as bench:
        await add_text(bench, "a.py", "def f():\n    pass\n")
        await add_text(bench, "b.py", "def deadly():\n    pass\n")
        await add_text(bench, "c.py", "def g():\n    pass\n")

        async def parsed() -> bool:
            return (await bench.call(DocumentsGraph(list_types=True))).node_type_counts == {"file": 3, "function": 2}

        await until(parsed)


async def test_the_graph_service_is_updated_when_a_name_gets_another_meaning(tmp_path: Path) -> None:
    async with documents(tmp_path, {"graph": open_graph}) as bench:
        await add_text(bench, "a.py", "from b import f\n\ndef g():\n    f()\n")
        await add_text(bench, "b.py", "def f():\n    pass\n")

        async def fed() -> bool:
            return (await bench.call(DocumentsStatus())).graph_waiting == 0

        async def retold() -> bool:
            return ("file:a.py", "IMPORTS", "module:b") in await told()

        async def told() -> set[tuple[str, str, str]]:
            await until(fed)
            asked = GraphNeighbors(id="file:a.py", corpus="documents", depth=2, direction=Direction.OUT)
            found = await bench.call(asked)
            return {(edge.source, edge.type, edge.target) for edge in found.edges}

        assert ("symbol:a.py#g@3", "CALLS", "symbol:b.py#f@1") in await told()
        assert ("file:a.py", "IMPORTS", "file:b.py") in await told()
        await bench.stop("graph")
        await bench.call(DocumentsDelete(name="b.py"))
        await bench.start("graph")
        await until(retold)
        assert not any(target.startswith(("file:b.py", "symbol:b.py")) for _, _, target in await told())
