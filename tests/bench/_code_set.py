"""A labelled set of code in BEIR layout: functions of this interpreter's library, with queries as people type on the
web.

The queries were written by hand without looking at the words in the functions (`code_queries.tsv`: module and function,
then the query); nothing was fitted to them.
"""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

QUERIES = Path(__file__).with_name("code_queries.tsv")


def write(folder: Path) -> Path:
    """Write the set to `folder`, and return the folder."""
    asked = [line.split("\t") for line in QUERIES.read_text(encoding="utf-8").splitlines()]
    library = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted({wanted.partition(":")[0] for wanted, _ in asked})
    there = {name: text for module in modules for name, text in functions(module, library / f"{module}.py")}
    known = [(wanted, query) for wanted, query in asked if wanted in there]
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as corpus:
        for name, text in there.items():
            corpus.write(json.dumps({"_id": name, "title": "", "text": text}) + "\n")
    with (folder / "queries.jsonl").open("w") as queries, (folder / "qrels" / "test.tsv").open("w") as judged:
        judged.write("query-id\tcorpus-id\tscore\n")
        for wanted, query in known:
            queries.write(json.dumps({"_id": f"q-{wanted}", "text": query}) + "\n")
            judged.write(f"q-{wanted}\t{wanted}\t1\n")
    print(f"code: {len(there)} functions, {len(known)} of {len(asked)} queries (the rest do not apply to this version)")
    return folder


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
