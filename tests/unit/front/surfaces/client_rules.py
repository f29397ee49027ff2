"""Published rules of clients and model APIs for lists of tools, one function each.

Each function yields the violations as `path: reason`. A client passes the whole list to its model, and most APIs refuse
a request that contains one bad tool, so a single violation makes every tool unusable there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema

Tool = dict[str, Any]
Schema = dict[str, Any]

COMBINED = ("anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else")


def nodes(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every schema within a schema, itself first, with its path."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
        for name, each in schema.get(key, {}).items():
            yield from nodes(each, f"{path}.{key}.{name}")
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, each in enumerate(schema.get(key, ())):
            yield from nodes(each, f"{path}.{key}[{number}]")
    for key in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
        if key in schema:
            yield from nodes(schema[key], f"{path}.{key}")


def anthropic_names(tool: Tool) -> Iterator[str]:
    """Tool names match `^[a-zA-Z0-9_-]{1,64}$`.

    https://docs.claude.com/en/docs/agents-and-tools/tool-use/implement-tool-use
    """
    if not re.fullmatch("[a-zA-Z0-9_-]{1,64}", tool["name"]):
        yield f"name: {tool['name']}"


def anthropic_combines_nothing_at_the_root(tool: Tool) -> Iterator[str]:
    """`input_schema does not support oneOf, allOf, or anyOf at the top level`.

    https://github.com/anthropics/claude-code/issues/5973
    """
    yield from (key for key in COMBINED if key in tool["inputSchema"])


def anthropic_names_of_parameters(tool: Tool) -> Iterator[str]:
    """`Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'`.

    https://github.com/anthropics/claude-code/issues/79418
    """
    for path, node in nodes(tool["inputSchema"]):
        for name in node.get("properties", ()):
            if not re.fullmatch("[a-zA-Z0-9_.-]{1,64}", name):
                yield f"{path}.{name}"


def openai_root_is_a_plain_object(tool: Tool) -> Iterator[str]:
    """`schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level`.

    https://github.com/langchain-ai/langchainjs/issues/9804
    """
    schema = tool["inputSchema"]
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        yield "type: not object, or no properties"
    yield from (key for key in COMBINED if key in schema)


def openai_arrays_have_items(tool: Tool) -> Iterator[str]:
    """`array schema missing items`, at any depth and also beside `prefixItems`.

    https://github.com/PrefectHQ/fastmcp/issues/2464
    """
    for path, node in nodes(tool["inputSchema"]):
        kinds = node.get("type") if isinstance(node.get("type"), list) else [node.get("type")]
        if "array" in kinds and not isinstance(node.get("items"), dict):
            yield path


def openai_names_and_descriptions(tool: Tool) -> Iterator[str]:
    """Names have letters, digits, `_` and `-`, at most 64; descriptions at most 1024 characters.

    https://platform.openai.com/docs/api-reference/chat/create
    """
    if not re.fullmatch("[a-zA-Z0-9_-]{1,64}", tool["name"]):
        yield f"name: {tool['name']}"
    if not 1 <= len(tool["description"]) <= 1024:
        yield f"description: {len(tool['description'])} characters"


_GEMINI_KEYS = {"type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems"}
_GEMINI_KEYS |= {"properties", "required", "minProperties", "maxProperties", "propertyOrdering", "minLength", "example"}
_GEMINI_KEYS |= {"maxLength", "pattern", "anyOf", "default", "minimum", "maximum"}


def gemini_knows_every_keyword(tool: Tool) -> Iterator[str]:
    """A `Schema` has these fields and no others: `Unknown name "const" … Cannot find field`.

    https://ai.google.dev/api/caching#Schema
    """
    for path, node in nodes(tool["inputSchema"]):
        yield from (f"{path}.{key}" for key in node if key not in _GEMINI_KEYS)


def gemini_has_one_type(tool: Tool) -> Iterator[str]:
    """`type` is required and one of an enumeration: `Proto field is not repeating, cannot start list`.

    https://github.com/taylorwilsdon/google_workspace_mcp/issues/1099
    """
    for path, node in nodes(tool["inputSchema"]):
        if "anyOf" not in node and node.get("type") not in (
            "string", "number", "integer", "boolean", "array", "object"
        ):  # fmt: skip
            yield f"{path}: {node.get('type')}"


def gemini_choices_stand_alone(tool: Tool) -> Iterator[str]:
    """`When using any_of, it must be the only field set`.

    https://github.com/lambda-alpha-labs/Graphenium/issues/37
    """
    for path, node in nodes(tool["inputSchema"]):
        if "anyOf" in node and len(node) > 1:
            yield path


def gemini_lists_strings(tool: Tool) -> Iterator[str]:
    """`enum` is of strings that are not empty, for `type: string` alone.

    https://ai.google.dev/api/caching#Schema
    """
    for path, node in nodes(tool["inputSchema"]):
        if "enum" in node and (
            node.get("type") != "string" or not all(isinstance(each, str) and each for each in node["enum"])
        ):
            yield path


def gemini_formats(tool: Tool) -> Iterator[str]:
    """`only 'enum' and 'date-time' are supported for STRING type`.

    https://github.com/hideya/langchain-mcp-tools-ts/issues/36
    """
    known = {"string": ("enum", "date-time"), "number": ("float", "double"), "integer": ("int32", "int64")}
    for path, node in nodes(tool["inputSchema"]):
        if "format" in node and node["format"] not in known.get(node.get("type"), ()):
            yield path


def gemini_arrays_have_items(tool: Tool) -> Iterator[str]:
    """`parameters.properties[x].items: missing field`.

    https://ai.google.dev/api/caching#Schema
    """
    yield from openai_arrays_have_items(tool)


def gemini_names(tool: Tool) -> Iterator[str]:
    """Functions and parameters begin with a letter or `_`; parameters have letters, digits and `_`; at most 64.

    https://cloud.google.com/vertex-ai/docs/reference/rest/v1beta1/FunctionDeclaration
    """
    if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_.-]{0,63}", tool["name"]):
        yield f"name: {tool['name']}"
    for path, node in nodes(tool["inputSchema"]):
        yield from (
            f"{path}.{n}" for n in node.get("properties", ()) if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]{0,63}", n)
        )


def gemini_requires_what_is_there(tool: Tool) -> Iterator[str]:
    """`parameters.required[0]: property is not defined`.

    https://ai.google.dev/api/caching#Schema
    """
    for path, node in nodes(tool["inputSchema"]):
        yield from (f"{path}.{name}" for name in node.get("required", ()) if name not in node.get("properties", {}))


def vscode_reads_json_schema(tool: Tool) -> Iterator[str]:
    """`tool parameters do not match JSON schema`: the meta-schema of draft 7.

    https://github.com/microsoft/vscode-copilot-chat/blob/main/src/extension/tools/common/toolSchemaNormalizer.ts
    """
    for error in jsonschema.Draft7Validator(jsonschema.Draft7Validator.META_SCHEMA).iter_errors(tool["inputSchema"]):
        yield f"{error.json_path}: {error.message}"


def vscode_arrays_have_items(tool: Tool) -> Iterator[str]:
    """`tool parameters array type must have items`.

    https://github.com/microsoft/vscode/issues/246119
    """
    yield from openai_arrays_have_items(tool)


def vscode_changes_nothing_at_the_root(tool: Tool) -> Iterator[str]:
    """VS Code removes combining keywords from the root and undefined names from `required`; the model then sees other
    rules than the server checks.

    https://github.com/microsoft/vscode-copilot-chat/blob/main/src/extension/tools/common/toolSchemaNormalizer.ts
    """
    yield from openai_root_is_a_plain_object(tool)
    yield from gemini_requires_what_is_there(tool)
    if not tool["description"].strip():
        yield "description"


def inspector_has_no_warning(tool: Tool) -> Iterator[str]:
    """`--strict`: no list of types, no schema without a keyword that constrains, no bare `true`, no remote reference.

    https://github.com/modelcontextprotocol/inspector/blob/main/core/json/schemaLint.ts
    """
    for kind in ("inputSchema", "outputSchema"):
        for path, node in nodes(tool.get(kind, {"type": "object"}), kind):
            if isinstance(node, bool):
                if not path.endswith(".additionalProperties"):
                    yield f"{path}: boolean"
            elif isinstance(node.get("type"), list):
                yield f"{path}: list of types"
            elif not str(node.get("$ref", "#")).startswith("#"):
                yield f"{path}: remote"
            elif not set(node) - {"description", "title", "default", "examples", "$comment", "readOnly", "deprecated"}:
                yield f"{path}: constrains nothing"


MAX_TOOLS = 128
"""OpenAI's API and VS Code take no more in one request.

https://platform.openai.com/docs/api-reference/chat/create, https://code.visualstudio.com/docs/copilot/chat/mcp-servers
"""

RULES: tuple[Callable[[Tool], Iterator[str]], ...] = (
    anthropic_names,
    anthropic_combines_nothing_at_the_root,
    anthropic_names_of_parameters,
    openai_root_is_a_plain_object,
    openai_arrays_have_items,
    openai_names_and_descriptions,
    gemini_knows_every_keyword,
    gemini_has_one_type,
    gemini_choices_stand_alone,
    gemini_lists_strings,
    gemini_formats,
    gemini_arrays_have_items,
    gemini_names,
    gemini_requires_what_is_there,
    vscode_reads_json_schema,
    vscode_arrays_have_items,
    vscode_changes_nothing_at_the_root,
    inspector_has_no_warning,
)


def broken(tools: list[Tool]) -> list[str]:
    """Every rule that a list breaks: `rule: tool: what`."""
    found = [f"{rule.__name__}: {tool['name']}: {each}" for rule in RULES for tool in tools for each in rule(tool)]
    return [*found, *([f"{len(tools)} tools"] if len(tools) > MAX_TOOLS else [])]
