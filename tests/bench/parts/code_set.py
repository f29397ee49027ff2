"""Labelled sets of code in BEIR layout.

- Functions of this interpreter's library, with queries as people type on the web. They were written by hand without
  looking at the words in the functions (`code_queries.tsv`: module and function, then the query); nothing was fitted to
  them.
- Functions of installed packages without their documentation, of which the first sentence is the query.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

QUERIES = Path(__file__).with_name("code_queries.tsv")

PACKAGES = ("trio", "markdown_it", "mcp", "pip", "hypothesis", "networkx", "jinja2", "PIL", "pygments", "anyio")
MAX_FUNCTIONS, MAX_QUERIES = 5000, 400
LEAST_LINES = 4
_SENTENCE = re.compile(r"(?<=[.])\s|\n\s*\n")


def write(folder: Path) -> Path:
    """Write the set to `folder`, and return the folder."""
    asked = [line.split("\t") for line in QUERIES.read_text(encoding="utf-8").splitlines()]
    library = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted({wanted.partition(":")[0] for wanted, _ in asked})
    there = {name: text for module in modules for name, text in functions(module, library / f"{module}.py")}
    known = [(wanted, query) for wanted, query in asked if wanted in there]
    _write(folder, there.items(), [(query, wanted) for wanted, query in known])
    print(f"code: {len(there)} functions, {len(known)} of {len(asked)} queries (the rest do not apply to this version)")
    return folder


def _write(folder: Path, documents: Iterable[tuple[str, str]], queries: Iterable[tuple[str, str]]) -> None:
    """Write names and texts, and queries with the name of the text that answers them."""
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as corpus:
        for name, text in documents:
            corpus.write(json.dumps({"_id": name, "title": "", "text": text}) + "\n")
    with (folder / "queries.jsonl").open("w") as asked, (folder / "qrels" / "test.tsv").open("w") as judged:
        judged.write("query-id\tcorpus-id\tscore\n")
        for number, (query, name) in enumerate(queries):
            asked.write(json.dumps({"_id": f"q{number}", "text": query}) + "\n")
            judged.write(f"q{number}\t{name}\t1\n")


class _Function(NamedTuple):
    """A function without its documentation; `asked` is its first sentence, if it has a usable one."""

    name: str
    text: str
    asked: str | None


def write_packages(folder: Path) -> Path:
    """Write the set of installed packages to `folder`, and return the folder."""
    site = Path(sysconfig.get_paths()["purelib"])
    found = [
        each for name in PACKAGES for path in sorted((site / name).rglob("*.py")) for each in _without_help(site, path)
    ]
    random.Random(1).shuffle(found)
    some = {each.name: each for each in found[:MAX_FUNCTIONS]}
    asked = [(each.asked, each.name) for each in some.values() if each.asked is not None][:MAX_QUERIES]
    _write(folder, ((each.name, each.text) for each in some.values()), asked)
    print(f"packages: {len(some)} functions, {len(asked)} queries")
    return folder


def _without_help(site: Path, path: Path) -> Iterator[_Function]:
    """Yield the functions of a file."""
    source = path.read_text(encoding="utf-8", errors="replace")
    try:
        module = ast.parse(source)
    except SyntaxError:
        return
    lines = source.splitlines()
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        body, asked = lines[node.lineno - 1 : node.end_lineno], None
        if (said := ast.get_docstring(node)) and len(node.body) > 1:
            help_ = node.body[0]
            body = lines[node.lineno - 1 : help_.lineno - 1] + lines[help_.end_lineno : node.end_lineno]
            sentence = " ".join(_SENTENCE.split(said)[0].split())
            asked = sentence if 25 < len(sentence) < 160 and sentence[0].isalpha() else None
        if len(body) >= LEAST_LINES:
            name = "_".join((*path.relative_to(site).with_suffix("").parts, node.name))
            yield _Function(f"{name}.py", textwrap.dedent("\n".join(body)), asked)


def functions(module: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield names and texts of functions and methods with at least three lines; for equal names, the first."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    seen: set[str] = set()
    module_ = ast.parse(source)
    scopes: list[ast.Module | ast.ClassDef] = [module_]
    scopes += (node for node in module_.body if isinstance(node, ast.ClassDef))
    for scope in scopes:
        before = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
        for node in scope.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
                continue
            name = f"{module}:{before}{node.name}"
            if node.end_lineno - node.lineno >= 2 and name not in seen:
                seen.add(name)
                yield name, "\n".join(lines[node.lineno - 1 : node.end_lineno])
