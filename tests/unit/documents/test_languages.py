"""The facts read from a file of each language: its definitions, calls and imports."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from proto.ops.decode import CALLS, EXTENDS, IMPORTS, LANGUAGES
from services.decode.symbols import loaded, parse
from services.documents.operations.adding import DocumentsAdd
from tests.unit.documents.rig import documents, tree
from tests.unit.documents.test_graph import edges

HERE = Path(__file__).parent / "languages"


class Read(NamedTuple):
    """All symbols as `kind name`, some of the calls as `caller: on.callee`, all imports, all that is extended."""

    symbols: str
    calls: str
    imports: str = ""
    extends: str = ""


FILES = {
    "shop.rb": Read(
        "module Shop, class Shop.Cart, method Shop.Cart.initialize, method Shop.Cart.total, method Shop.Cart.empty,"
        " method Shop.Cart.print_total",
        "Shop.Cart.total: .round_up, Shop.Cart.total: Tax::Rates.of, Shop.Cart.print_total: self.total",
        "json, tax/rates", "Shop.Cart: Base",
    ),
    "Cart.php": Read(
        "interface Priced, method Priced.total, trait Loud, method Loud.shout, enum Kind, class Cart,"
        " method Cart.total, method Cart.prices, method Cart.make, function round_up",
        "Cart.total: .round_up, Cart.total: Rates.of, Cart.total: parent.total, Cart.total: $this.prices,"
        " Cart.total: .Rates",
        r"Shop\Tax\Rates, Vendor\Log, /lib/helpers.php, lib/money.php", "Cart: Base",
    ),
    "Cart.cs": Read(
        "module Shop, interface Shop.IPriced, method Shop.IPriced.Total, enum Shop.Kind, class Shop.Money,"
        " struct Shop.Point, class Shop.Cart, method Shop.Cart.Cart, method Shop.Cart.Total, method Shop.Cart.RoundUp,"
        " method Shop.Cart.Extra, function Shop.Cart.Extra.Local",
        "Shop.Cart.Total: .RoundUp, Shop.Cart.Total: Rates.Of, Shop.Cart.Total: base.Total,"
        " Shop.Cart.Total: this.Extra, Shop.Cart.RoundUp: Helper.Ceil, Shop.Cart.Extra: .Money",
        "System, Shop.Tax, System.Math", "Shop.Cart: Base",
    ),
    "Cart.kt": Read(
        "class Kind, class Registry, method Registry.find, class Cart, method Cart.total, method Cart.make,"
        " function roundUp, function shout, type Cents",
        "Cart.total: .roundUp, Cart.total: Rates.of, Cart.total: super.total, Cart.total: this.extra,"
        " Cart.make: .Cart, roundUp: helper.ceil",
        "shop.tax.Rates, kotlin.math", "Cart: Base",
    ),
    "Cart.swift": Read(
        "interface Priced, method Priced.total, enum Kind, struct Money, method Money.show, class Cart,"
        " method Cart.init, method Cart.total, method Cart.extra, method Cart.more, class Counter, method Counter.up,"
        " function roundUp, type Cents",
        "Cart.total: .roundUp, Cart.total: Rates.of, Cart.total: super.total, Cart.total: self.extra,"
        " Cart.extra: .Money",
        "Foundation, Tax.Rates", "Cart: Base, Cart: Priced",
    ),
    "deploy.sh": Read(
        "function build, function deploy",
        "build: .compile, deploy: .build, deploy: .render, deploy: .rsync",
        "lib/common.sh, ./lib/log.sh",
    ),
    "schema.sql": Read(
        "table customer, table orders, view big_orders, function round_up, function add, view mv, type mood",
        "big_orders: .round_up, round_up: .ceil, add: .helper",
    ),
    "Cart.scala": Read(
        "trait Priced, method Priced.total, class Money, class Registry, method Registry.find, class Cart,"
        " method Cart.total, method Cart.roundUp, method Cart.go, enum Kind, type Cents, function top",
        "Cart.total: .roundUp, Cart.total: Rates.of, Cart.total: super.total, Cart.roundUp: helper.ceil,"
        " Cart.go: this.roundUp",
        "shop.tax.Rates, scala.collection.mutable.Map, scala.collection.mutable.Set, java.util", "Cart: Base",
    ),
    "cart.lua": Read(
        "function round_up, method Cart.new, method Cart.total, method Cart.extra, function shout",
        "Cart.total: .round_up, Cart.total: rates.of, Cart.total: self.extra, round_up: math.ceil",
        "tax.rates, json",
    ),
}  # fmt: skip


def _listed(text: str) -> list[str]:
    return text.split(", ") if text else []


@pytest.mark.parametrize("name", FILES)
def test_definitions_calls_and_imports_of_a_file_are_read(name: str) -> None:
    parsed = parse((HERE / name).read_bytes(), Path(name).suffix)
    assert parsed is not None
    wanted = FILES[name]
    assert [f"{one.kind} {one.qualified}" for one in parsed.symbols] == _listed(wanted.symbols)
    within = {kind: [(one, parsed.symbols[one.symbol].qualified if one.symbol >= 0 else "") for one in parsed.references
                     if one.kind == kind] for kind in (CALLS, EXTENDS, IMPORTS)}  # fmt: skip
    calls = {f"{caller}: {one.target}.{one.key}" for one, caller in within[CALLS]}
    assert set(_listed(wanted.calls)) - calls == set()
    assert [one.target for one, _ in within[IMPORTS]] == _listed(wanted.imports)
    assert [f"{around}: {one.target}" for one, around in within[EXTENDS]] == _listed(wanted.extends)


def test_every_language_has_a_grammar_and_a_query_that_fit() -> None:
    for name in {name for name, _ in LANGUAGES.values()}:
        grammar, query = loaded(name)
        assert grammar.node_kind_count > 0
        assert query.pattern_count > 0


TREE: dict[str, str | bytes] = {
    "rb/main.rb": "require_relative 'tax/rates'\ndef total\n  Rates.of(1)\nend\n",
    "rb/tax/rates.rb": "class Rates\n  def self.of(cart)\n    1\n  end\nend\n",
    "php/src/Tax/Rates.php": "<?php\nnamespace Shop\\Tax;\nclass Rates { static function of($c) { return 1; } }\n",
    "php/src/Cart.php": "<?php\nuse Shop\\Tax\\Rates;\nclass Cart { function total() { return Rates::of($this); } }\n",
    "kt/shop/tax/Rates.kt": "package shop.tax\n\nclass Rates {\n    fun of(c: Int) = c\n}\n",
    "kt/shop/Cart.java": "package shop; import shop.tax.Rates; class Cart { int t(Rates r) { return r.of(1); } }\n",
    "sh/lib/log.sh": "log() {\n    echo $1\n}\n",
    "sh/run.sh": '. "$(dirname "$0")/lib/log.sh"\nmain() {\n    log started\n}\n',
    "lua/tax/rates.lua": "local M = {}\nfunction M.of(c) return 1 end\nreturn M\n",
    "lua/cart.lua": 'local rates = require("tax.rates")\nfunction total() return rates.of(1) end\n',
}
EXPECTED = {
    ("file:rb/main.rb", "IMPORTS", "file:rb/tax/rates.rb", None),
    ("symbol:rb/main.rb#total", "CALLS", "symbol:rb/tax/rates.rb#Rates.of", "resolved"),
    ("file:php/src/Cart.php", "IMPORTS", "file:php/src/Tax/Rates.php", None),
    ("symbol:php/src/Cart.php#Cart.total", "CALLS", "symbol:php/src/Tax/Rates.php#Rates.of", "resolved"),
    ("file:kt/shop/Cart.java", "IMPORTS", "file:kt/shop/tax/Rates.kt", None),
    ("symbol:kt/shop/Cart.java#Cart.t", "CALLS", "symbol:kt/shop/tax/Rates.kt#Rates.of", "ambiguous"),
    ("file:sh/run.sh", "IMPORTS", "file:sh/lib/log.sh", None),
    ("symbol:sh/run.sh#main", "CALLS", "symbol:sh/lib/log.sh#log", "resolved"),
    ("file:lua/cart.lua", "IMPORTS", "file:lua/tax/rates.lua", None),
    ("symbol:lua/cart.lua#total", "CALLS", "symbol:lua/tax/rates.lua#M.of", "resolved"),
}


async def test_imports_and_calls_between_files_are_edges(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    tree(root, TREE)
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        found: set[tuple[str, str, str, str | None]] = set()
        for name in TREE:
            found |= await edges(bench, root, name=str(root / name), depth=2)
        assert found >= EXPECTED, EXPECTED - found
