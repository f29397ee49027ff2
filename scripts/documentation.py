"""The reference part of the documentation, generated from the code, and the hooks with which MkDocs adds it.

scripts/docs [build|serve]                                     the whole site
.venv/bin/python scripts/documentation.py FOLDER               only the generated pages
"""

from __future__ import annotations

import argparse
import html
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts" / "import_root"))

from kernel import VERSION  # noqa: E402
from kernel.cli.parser import build_parser  # noqa: E402
from kernel.cli.settings import layers as settings  # noqa: E402
from kernel.cli.settings.described import field_docs  # noqa: E402
from proto import ops  # noqa: E402
from proto.operation import CLIENT, SURFACES, Operation, Role  # noqa: E402
from services.front.web import metrics, openapi  # noqa: E402

OUTSIDE = ("README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
"""Files of the repository that pages link to; the site has copies of them in `project/`."""

GENERATED = "<!-- Generated from the code by scripts/documentation.py -->\n"


def pages() -> dict[str, str]:
    """Return the generated pages by their path below `docs/`."""
    table = ops.load()
    return {
        "reference/tools.md": "".join(tools(table)),
        "reference/settings.md": "".join(all_settings()),
        "reference/cli.md": "".join(commands()),
        "reference/metrics.md": "".join(all_metrics()),
        "reference/http.md": "".join(http(table)),
        "reference/openapi.json": json.dumps(openapi.document(table, VERSION), indent=1) + "\n",
    }


def tools(table: ops.Table) -> Iterator[str]:
    """Yield the page of all operations that clients may call."""
    yield GENERATED + "# Tools and operations\n\n"
    yield (
        "Everything that a client can call, by service. *Access* says whether it changes stored data. *Repeated* says "
        "what happens to a call whose service dies while it runs: it is sent again if that is harmless; otherwise the "
        "client is told that it may have been executed.\n"
    )
    shown = sorted((op for op in table.values() if op.admits(CLIENT)), key=lambda op: (op.service, op.name))
    for service in dict.fromkeys(op.service for op in shown):
        yield f"\n## {service}\n"
        for op in shown:
            if op.service == service:
                yield from _operation(op)


def _operation(op: Operation[Any]) -> Iterator[str]:
    yield f"\n### `{op.name}`\n\n{_text(op.description)}\n\n"
    surfaces = [name for name in SURFACES if name in op.surfaces or (name == "all" and op.role is Role.TOOL)]
    facts = [f"access: {op.access.value}", f"repeated: {'yes' if op.idempotent else 'no'}"]
    facts += [f"deadline: {op.deadline_ms / 1000:g} s"]
    facts += [f"surfaces: {', '.join(surfaces)}"] if surfaces else []
    facts += [f"as a step: `{op.step}`"] if op.role is Role.STEP or op.step else []
    facts += [f"HTTP: `{op.http.method} {op.http.path}`"] if op.http else []
    facts += [f"resource: `{op.resource.uri}`"] if op.resource else []
    facts += [f"JSON-RPC error {code}: {text}" for code, text in op.codes.items()]
    yield "; ".join(facts) + ".\n"
    schema = op.input_schema
    if schema.get("properties"):
        yield "\n| parameter | type | default | description |\n|---|---|---|---|\n"
        required = schema.get("required", [])
        for name, each in schema["properties"].items():
            default = (
                "*required*" if name in required else f"`{json.dumps(each['default'])}`" if "default" in each else ""
            )
            yield _row(f"`{name}`", _type(each), default, each.get("description", ""))
    if op.output_schema is not None and op.output_schema.get("properties"):
        fields = ", ".join(f"`{name}` ({_type(each)})" for name, each in op.output_schema["properties"].items())
        yield f"\nReturns an object with {fields}.\n"


def _type(schema: Any) -> str:
    """Return a JSON Schema as a few words, with its bounds."""
    if not isinstance(schema, dict):
        return "any"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(kind)
    if kind == "array":
        kind = f"array of {_type(schema.get('items', {}))}"
    bounds = [
        f"{sign} {schema[key]}"
        for key, sign in (
            ("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"),
            ("minLength", "length ≥"), ("maxLength", "length ≤"), ("minItems", "items ≥"), ("maxItems", "items ≤"),
        )
        if key in schema
    ]  # fmt: skip
    return ", ".join([str(kind), *bounds])


def all_settings() -> Iterator[str]:
    """Yield the page of all settings, from the types that read them."""
    yield GENERATED + "# Settings reference\n\n"
    yield "[Settings](../settings.md) shows them as a file, and says which of several values counts.\n"
    variables = {".".join(where): name for name, (where, _) in settings.ENVIRONMENT.items()}
    for title, kind, prefix in setting_types():
        yield f"\n## {title}\n\n{_text(inspect.getdoc(kind) or '')}\n\n"
        yield "| setting | type | default | variable | description |\n|---|---|---|---|---|\n"
        described = field_docs(kind)
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
                continue
            ((schema,), _) = msgspec.json.schema_components([field.type], schema_hook=lambda _: {"type": "any"})
            default = "" if field.required else f"`{_plain(field)}`"
            variable = variables.get(f"{prefix}{name}", "") or (
                f"LINCKIA_SERVICES__{prefix.split('.')[1]}__{name}".upper() if prefix.startswith("services.") else ""
            )
            text = schema.get("description") or described.get(field.name, "")
            yield _row(f"`{name}`", _type(schema), default, f"`{variable}`" if variable else "", text)


def setting_types() -> list[tuple[str, type[msgspec.Struct], str]]:
    """Return the title, the type and the prefix of each table of settings."""
    found: list[tuple[str, type[msgspec.Struct], str]] = [("Settings of the kernel", settings.LayerSettings, "")]
    for field in msgspec.structs.fields(settings.LayerSettings):
        for kind in _structs(field.type):
            if kind.__name__ != "Root":
                found.append((f"`[{field.name}]`", kind, f"{field.name}."))
    for folder in sorted((ROOT / "services").iterdir()):
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for name, table in re.findall(r'^class (\w+)\(.*?\n    """Settings of `\[([\w.]+)\]`', text, re.M | re.S):
                if re.search(rf"^class {name}\(", text, re.M) is None:
                    continue
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                kind = getattr(importlib.import_module(module), name)
                service = table.removeprefix("services.")
                found.append((f"`[services.{service}]`", kind, f"services.{service}."))
    return found


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type):
        if issubclass(kind, msgspec.Struct):
            yield kind
        return
    for each in getattr(kind, "__args__", ()):
        yield from _structs(each)


def _plain(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return json.dumps(msgspec.to_builtins(value, enc_hook=str))


def commands() -> Iterator[str]:
    """Yield the page of the command line, from its parser."""
    yield GENERATED + "# Command line\n\n"
    parser = build_parser()
    yield f"{parser.description}\n\n`linckia --version` prints the version.\n\n"
    yield f"```text\n{parser.epilog}\n```\n" if parser.epilog else ""
    yield from _commands(parser, "linckia", "##")


def _commands(parser: argparse.ArgumentParser, name: str, heading: str) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for each, sub in sorted(action.choices.items()):
            yield f"\n{heading} `{name} {each}`\n\n{_sentence(sub.description or '')}\n\n"
            usage = " ".join(sub.format_usage().removeprefix("usage: ").split())
            yield f"```text\n{usage}\n```\n"
            rows = [_row(*row) for row in _options(sub)]
            if rows:
                yield "\n| argument | default | description |\n|---|---|---|\n" + "".join(rows)
            if sub.epilog:
                yield f"\n```text\n{sub.epilog.strip()}\n```\n"
            yield from _commands(sub, f"{name} {each}", heading + "#")


def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        value = action.metavar if isinstance(action.metavar, str) else ""
        if not value and action.choices is not None:
            value = "|".join(map(str, action.choices))
        names = [f"{option} {value}".strip() if action.nargs != 0 else option for option in action.option_strings]
        text = (action.help or "").replace(str(Path.home()), "~").replace("%%", "%")
        yield ", ".join(f"`{each}`" for each in names) or f"`{value or action.dest}`", "", _sentence(text)


def all_metrics() -> Iterator[str]:
    """Yield the page of the metrics, from an exposition with one of each."""
    yield GENERATED + "# Metrics\n\n`GET /metrics` returns these for Prometheus.\n\n"
    yield "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    for family in metrics.described():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        yield _row(f"`{name}`", family.type, labels, family.documentation)


def http(table: ops.Table) -> Iterator[str]:
    """Yield the page of the HTTP routes."""
    document = openapi.document(table, VERSION)
    yield GENERATED + "# HTTP routes\n\n"
    yield (
        "The same as [openapi.json](openapi.json), an OpenAPI document that a running kernel serves at "
        "`/openapi.json`. [HTTP](../http.md) has the rest: tokens, MCP, and the operator's page.\n\n"
    )
    yield "| route | service | what it does | parameters |\n|---|---|---|---|\n"
    for path, methods in document["paths"].items():
        for method, each in methods.items():
            names = [f"`{parameter['name']}`" for parameter in each.get("parameters", ())]
            names += ["a JSON body"] if "requestBody" in each else []
            yield _row(f"`{method.upper()} {path}`", each["tags"][0], each["summary"], ", ".join(names))


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(_text(cell).split()).replace('|', chr(92) + '|') for cell in cells)} |\n"


def _text(text: str) -> str:
    """Return Markdown in which only code has characters with a meaning in HTML."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else html.escape(part, quote=False) for part in parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def write(folder: Path) -> None:
    """Write the generated pages below a folder."""
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# Hooks of MkDocs


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and the files outside `docs/`."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    for name in OUTSIDE:
        target = f"project/{Path(name).stem.lower()}.md"
        files.append(File.generated(config, target, content=_inside((ROOT / name).read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links to files outside `docs/` into links to their copies."""
    if page.file.src_uri.startswith(("project/", "reference/")):
        return markdown
    up = "../" * page.file.src_uri.count("/")
    for name in OUTSIDE:
        markdown = markdown.replace(f"]({up}../{name}", f"]({up}project/{Path(name).stem.lower()}.md")
    return markdown


def _inside(text: str) -> str:
    """Return a file of the repository's root with links that are right in `project/`."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if target.startswith("docs/"):
            return f"](../{target.removeprefix('docs/')}{anchor})"
        if target in OUTSIDE:
            return f"]({Path(target).stem.lower()}.md{anchor})"
        return found[0]

    return re.sub(r"\]\(([^)#\s]+)(#[^)\s]*)?\)", link, text)


def main(arguments: Iterable[str]) -> int:
    folders = list(arguments)
    if len(folders) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    write(Path(folders[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
