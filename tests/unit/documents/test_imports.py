"""Calls through names that imports bind, aliases above all, have the edges that calls by the own name have."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.decode.bindings import unfolded
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.find import DocumentsGraph
from tests.in_process import Bench
from tests.unit.documents.rig import documents, tree
from tests.unit.documents.test_graph import edges

CASES = Path(__file__).parents[4] / "shared" / "cases" / "reports" / "code"


async def calls(bench: Bench, root: Path, name: str) -> set[str]:
    """The calls in a file as `caller > callee's file#callee`, with a question mark if the edge is ambiguous."""
    found = await edges(bench, root, name=name, relation="CALLS")
    return {
        f"{source.partition('#')[2]} > {target.removeprefix('symbol:')}{'?' * (certainty == 'ambiguous')}"
        for source, _, target, certainty in found
    }


async def callers(bench: Bench, root: Path, key: str) -> set[str]:
    found = await edges(bench, root, node_key=f"symbol:{root}/{key}", relation="CALLS", reverse=True)
    return {source.partition("#")[2] for source, *_ in found}


@pytest.mark.skipif(not CASES.is_dir(), reason="the reported cases are not beside this repository")
async def test_the_reported_files_have_their_edges(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {one.name: one.read_bytes() for one in CASES.iterdir()})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert await calls(bench, root, "use1.py") == {
            "a > rates.py#load", "b > rates.py#load", "c > rates.py#Client.fetch", "c > rates.py#Client",
            "d > rates.py#load",
        }  # fmt: skip
        assert await callers(bench, root, "rates.py#load") == {"a", "b", "d", "Client.fetch"}
        assert await callers(bench, root, "rates.py#Client.fetch") == {"c"}
        assert await calls(bench, root, "use.ts") == {
            "viaAlias > util.ts#loadRates", "viaName > util.ts#saveRates", "viaDefault > util.ts#main2",
            "viaNs > util.ts#loadRates",
        }  # fmt: skip
        assert await callers(bench, root, "util.ts#loadRates") == {"viaAlias", "viaNs"}
        assert await callers(bench, root, "util.ts#main2") == {"viaDefault"}


PYTHON = {
    "geo/__init__.py": "from .area import area as surface\nfrom .shape import Shape\n",
    "geo/area.py": "def area(x):\n    return x\n",
    "geo/shape.py": "class Shape:\n    def draw(self):\n        pass\n"
    "    @classmethod\n    def make(cls):\n        pass\n",
    "geo/inner.py": "from . import area as ar\nfrom .area import area as ar2\nfrom . import shape\n\n"
    "def relative():\n    ar.area(1)\n\ndef named():\n    ar2(1)\n\ndef plain():\n    shape.Shape()\n",
    "main.py": "import geo.area as ga\nimport geo as g\nfrom geo import area as sub\nfrom geo.shape import Shape as S\n"
    "from geo import surface\nfrom geo.area import area as size\n"
    "def dotted():\n    ga.area(1)\n\ndef package():\n    g.surface(1)\n\ndef submodule():\n    sub.area(1)\n\n"
    "def made():\n    S().draw()\n\ndef of_class():\n    S.make()\n\ndef passed_on():\n    surface(2)\n\n"
    "def area(x):\n    return size(x)\n\n"
    "def inside():\n    from geo import shape as sh\n    return sh.Shape()\n\n"
    "def outside():\n    return sh.Shape()\n\n"
    "class Round(S):\n    def go(self):\n        self.draw()\n\n"
    "class Square(ga.Missing):\n    pass\n",
    "away.py": "from elsewhere import area as there\nimport elsewhere as e\n\n"
    "def unknown():\n    there(1)\n    e.area(2)\n",
    "either.py": "try:\n    import fast as impl\nexcept ImportError:\n"
    "    import slow as impl\n\ndef run():\n    impl.go()\n",
    "fast.py": "def go():\n    pass\n",
    "slow.py": "def go():\n    return 1\n",
    "same/one.py": "def tick():\n    pass\n",
    "same/two.py": "def tick():\n    pass\n",
    "same/use.py": "from same.two import tick as t\n\ndef run():\n    t()\n",
}  # fmt: skip


async def test_aliases_of_python(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, PYTHON)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert await calls(bench, root, "main.py") == {
            "dotted > geo/area.py#area", "package > geo/area.py#area", "submodule > geo/area.py#area",
            "made > geo/shape.py#Shape.draw", "made > geo/shape.py#Shape", "of_class > geo/shape.py#Shape.make",
            "passed_on > geo/area.py#area", "area > geo/area.py#area", "inside > geo/shape.py#Shape",
            "Round.go > geo/shape.py#Shape.draw",
        }  # fmt: skip
        assert await calls(bench, root, "inner.py") == {
            "relative > geo/area.py#area", "named > geo/area.py#area", "plain > geo/shape.py#Shape",
        }  # fmt: skip
        # A module that is not stored has no edges.
        assert await calls(bench, root, "away.py") == set()
        assert await calls(bench, root, "either.py") == {"run > fast.py#go?", "run > slow.py#go?"}
        # Two files have one content, and the import says which is meant.
        assert await calls(bench, root, "same/use.py") == {"run > same/two.py#tick"}
        assert await callers(bench, root, "geo/area.py#area") == {
            "dotted", "package", "submodule", "passed_on", "area", "relative", "named"
        }  # fmt: skip


JAVASCRIPT = {
    "lib/one.ts": "export function load() {}\nexport default class Client {\n  fetch() {}\n  static make() {}\n}\n",
    "lib/two.ts": "function save() {}\nfunction drop() {}\nexport { save as store, drop as default };\n",
    "lib/anonymous.ts": "export default () => 1;\n",
    "lib/index.ts": "export { load as read, default as Client } from './one';\nexport * from './two';\n"
    "export { default } from './two';\n",
    "lib/common.js": "function go() {}\nfunction stop() {}\nmodule.exports = { run: go, stop };\n",
    "lib/single.js": "function only() {}\nmodule.exports = only;\n",
    "lib/fields.js": "function inner() {}\nexports.outer = inner;\n",
    "main.ts": "import C, { load as l } from './lib/one';\nimport d, * as two from './lib/two';\n"
    "import { default as d2, read, Client as Cl, store as keep } from './lib';\n"
    "import anonymous from './lib/anonymous';\n"
    "import * as all from './lib';\nimport legacy = require('./lib/single');\n"
    "function alias() { l(); }\nfunction method() { new C().fetch(); }\nfunction fixed() { C.make(); }\n"
    "function made() { new two.Missing(); return new Cl(); }\nfunction byDefault() { d(); }\n"
    "function viaIndex() { d2(); read(); keep(); }\nfunction ns() { two.store(); all.read(); }\n"
    "function nsNew() { return new all.Client(); }\nfunction unnamed() { anonymous(); }\n"
    "function old() { legacy(); }\nclass Sub extends C { run() { this.fetch(); super.fetch(); } }\n",
    "main.js": "const { run: r, stop } = require('./lib/common');\nconst c = require('./lib/common');\n"
    "const only1 = require('./lib/single');\nconst out = require('./lib/fields').outer;\n"
    "function taken() { r(); stop(); }\nfunction whole() { c.run(); c.stop(); }\nfunction single() { only1(); }\n"
    "function member() { out(); }\n"
    "async function later() { const m = await import('./lib/one'); m.load(); }\n"
    "async function parts() { const { load: x } = await import('./lib/one'); x(); }\n",
    "shadow.ts": "import { load as l } from './lib/one';\nfunction l() {}\nfunction mine() { l(); }\n",
}


async def test_aliases_defaults_and_namespaces_of_javascript(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, JAVASCRIPT)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert await calls(bench, root, "main.ts") == {
            "alias > lib/one.ts#load", "method > lib/one.ts#Client", "method > lib/one.ts#Client.fetch",
            "fixed > lib/one.ts#Client.make", "made > lib/one.ts#Client", "byDefault > lib/two.ts#drop",
            "viaIndex > lib/two.ts#drop", "viaIndex > lib/one.ts#load", "viaIndex > lib/two.ts#save",
            "ns > lib/two.ts#save", "ns > lib/one.ts#load", "nsNew > lib/one.ts#Client",
            "unnamed > lib/anonymous.ts#default", "old > lib/single.js#only", "Sub.run > lib/one.ts#Client.fetch",
        }  # fmt: skip
        assert await calls(bench, root, "main.js") == {
            "taken > lib/common.js#go", "taken > lib/common.js#stop", "whole > lib/common.js#go",
            "whole > lib/common.js#stop", "single > lib/single.js#only", "member > lib/fields.js#inner",
            "later > lib/one.ts#load", "parts > lib/one.ts#load",
        }  # fmt: skip
        assert await calls(bench, root, "shadow.ts") == {"mine > shadow.ts#l"}
        assert await callers(bench, root, "lib/two.ts#drop") == {"byDefault", "viaIndex"}
        assert await callers(bench, root, "lib/one.ts#Client.fetch") == {"method", "Sub.run"}


OTHERS = {
    "rs/util.rs": "pub fn load() {}\npub fn store() {}\npub struct Client;\n"
    "impl Client { pub fn new() -> Client { Client } }\n",
    "rs/deep/low.rs": "pub fn dig() {}\n",
    "rs/main.rs": "mod util;\nuse util::load as ld;\nuse crate::util::{store as keep, Client as C, self as u};\n"
    "use crate::deep::{low::{dig as d}, low as l};\nfn named() { ld(); }\nfn braces() { keep(); }\n"
    "fn typed() { C::new(); }\nfn module() { u::load(); }\nfn nested() { d(); }\nfn path() { l::dig(); }\n",
    "go/rates/rates.go": "package rates\n\nfunc Load() {}\n",
    "go/main.go": 'package main\n\nimport r "example.org/go/rates"\n\nfunc main() { r.Load() }\n',
    "kt/shop/Rates.kt": "package shop\n\nclass Rates {\n    fun of() = 1\n}\nfun ceil() = 2\n",
    "kt/Main.kt": "import shop.Rates as R\nimport shop.ceil as up\nfun typed() { R.of() }\nfun named() { up() }\n",
    "cs/Tax/Rates.cs": "namespace Tax { class Rates { public static int Of() { return 1; } } }\n",
    "cs/Main.cs": "using R = Tax.Rates;\nclass Main { int Total() { return R.Of(); } }\n",
    "sc/shop/Rates.scala": "package shop\nobject Rates { def of(c: Int) = c }\n",
    "sc/Main.scala": "import shop.{Rates => R}\nobject Total { def total() = R.of(1) }\n",
    "php/Rates.php": "<?php\nnamespace Shop;\nclass Rates { static function of() { return 1; } }\n",
    "php/main.php": "<?php\nuse Shop\\{Rates as R};\nfunction total() { return R::of(); }\n",
}


async def test_aliases_of_other_languages(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, OTHERS)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert await calls(bench, root, "main.rs") == {
            "named > rs/util.rs#load", "braces > rs/util.rs#store", "typed > rs/util.rs#Client.new",
            "module > rs/util.rs#load", "nested > rs/deep/low.rs#dig", "path > rs/deep/low.rs#dig",
        }  # fmt: skip
        assert await calls(bench, root, "main.go") == {"main > go/rates/rates.go#Load"}
        assert await calls(bench, root, "Main.kt") == {
            "typed > kt/shop/Rates.kt#Rates.of",
            "named > kt/shop/Rates.kt#ceil",
        }
        assert await calls(bench, root, "Main.cs") == {"Main.Total > cs/Tax/Rates.cs#Tax.Rates.Of"}
        assert await calls(bench, root, "Main.scala") == {"Total.total > sc/shop/Rates.scala#Rates.of"}
        assert await calls(bench, root, "main.php") == {"total > php/Rates.php#Rates.of"}


async def test_a_name_that_is_exported_later_is_found_then(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {"use.ts": "import run from './far';\nfunction go() { run(); }\n"})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        assert await calls(bench, root, "use.ts") == set()
        tree(root, {"far.ts": "function start() {}\nexport default start;\n"})
        await bench.call(DocumentsAdd(path=str(root)))
        assert await calls(bench, root, "use.ts") == {"go > far.ts#start"}
        modules = await bench.call(DocumentsGraph(name="use.ts", relation="IMPORTS"))
        assert [node.label for node in modules.nodes] == ["far.ts"]


def test_braces_of_imports_are_written_out() -> None:
    assert unfolded("a::{b, c::{d as e, self}, f}") == ["a::b", "a::c::d as e", "a::c::self", "a::f"]
    assert unfolded("a::b as c") == ["a::b as c"]
    assert unfolded("{a, b}") == ["a", "b"]
    assert unfolded("a::{b") == ["a::b"]
