"""Prompts: those that come with the system, and a user's Markdown files, which are listed as they are now."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proto import ops
from proto.operation import Role
from proto.wire.front import PromptFolder
from services.front import prompts
from services.front.composite.plan import plan
from services.front.gateway import open_gateway
from services.front.operations.steps import Query
from services.front.prompts import Folder, heading
from services.front.surfaces.steps import Category, Steps
from services.runtime.roots import Roots
from tests.unit.front.inprocess import InProcess
from tests.unit.front.wire import META, Wire, connected

TABLE = ops.load()
FILLED: list[tuple[str, dict[str, str], int]] = [
    ("search_codebase", {"pattern": 'def "x"', "file_type": "py", "path": "/src"}, 2),
    ("search_codebase", {"pattern": "a.*b"}, 2),
    ("summarize_document", {"document_name": "notes.md", "max_words": "50"}, 1),
    ("summarize_document", {"document_name": "abcdef0123"}, 1),
    ("research", {"topic": "sea stars", "depth": "thorough"}, 1),
    ("review_changes", {}, 1),
    ("review_changes", {"path": "/src", "recent": "5", "focus": "locks"}, 1),
]
"""Prompts that come with the system, with arguments, and how many calls their texts have."""

BUILT_IN = {"search_codebase", "summarize_document", "research", "review_changes"}


@contextlib.asynccontextmanager
async def served(
    data: Path, *roots: Path, surface: str = "documents", denied: tuple[str, ...] = ()
) -> AsyncIterator[Wire]:
    dispatcher = InProcess()
    for name, fill in prompts.HANDLERS.items():
        answer: Callable[[Any, Any], Any] = fill
        dispatcher.handlers.by_name[name] = (TABLE[name], answer)
    given = (PromptFolder(str(data / "prompts")), *(PromptFolder(str(root / "prompts"), str(root)) for root in roots))
    folders = [Folder.of(folder, Roots(denied=denied)) for folder in given]
    opened = open_gateway(TABLE, dispatcher, dispatcher, version="1", prompt_folders=folders)
    async with opened as gateway, connected(gateway, surface) as wire:
        yield wire


def examples_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls that a prompt's text has: objects in backquotes, each with the tool that was named last before it."""
    tool, found = "", []
    for code in re.findall(r"`([^`]+)`", text):
        if code in TABLE and TABLE[code].role is Role.TOOL:
            tool = code
        elif code.startswith("{"):
            found.append((tool, json.loads(code)))
    return found


async def ask(wire: Wire, method: str, params: dict[str, Any] | None = None) -> Any:
    await wire.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}})
    return await wire.receive()


async def listed(wire: Wire) -> dict[str, dict[str, Any]]:
    return {prompt["name"]: prompt for prompt in (await ask(wire, "prompts/list"))["result"]["prompts"]}


def write(folder: Path, name: str, text: str | bytes) -> None:
    (folder / "prompts").mkdir(exist_ok=True)
    draft = folder / "draft"
    draft.write_bytes(text if isinstance(text, bytes) else text.encode())
    # Write it atomically, so that no one reads half of it.
    draft.rename(folder / "prompts" / name)


@pytest.mark.parametrize("surface", ["documents", "compact", "all"])
async def test_prompts_that_come_with_the_system_have_arguments(tmp_path: Path, surface: str) -> None:
    async with served(tmp_path, surface=surface) as wire:
        await wire.initialize()
        found = await listed(wire)
        assert set(found) == BUILT_IN
        assert all(prompt["description"] and prompt["arguments"] for prompt in found.values())
        assert found["search_codebase"]["arguments"][0] | {"description": ""} == {
            "name": "pattern", "required": True, "description": ""
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search_codebase", {"pattern": 'def "x"', "file_type": "py", "path": "/src"}, r'"query":"def \"x\""'),
        ("summarize_document", {"document_name": "notes.md", "max_words": "50"}, "at most 50 words"),
        ("summarize_document", {"document_name": "abcdef0123"}, '"hash":"abcdef0123"'),
        ("research", {"topic": "sea stars", "depth": "thorough"}, "Search until a round brings nothing new"),
        ("review_changes", {}, '"recent":20'),
    ],
)
async def test_a_prompt_is_filled_in(tmp_path: Path, name: str, arguments: dict[str, str], said: str) -> None:
    async with served(tmp_path) as wire:
        await wire.initialize()
        result = (await ask(wire, "prompts/get", {"name": name, "arguments": arguments}))["result"]
        assert [message["role"] for message in result["messages"]] == ["user"]
        assert said in result["messages"][0]["content"]["text"]


@pytest.mark.parametrize("surface", sorted(prompts.SHOWN_ON))
@pytest.mark.parametrize(("name", "arguments", "examples"), FILLED)
async def test_each_example_of_a_prompt_is_a_call_that_can_run(
    tmp_path: Path, surface: str, name: str, arguments: dict[str, str], examples: int
) -> None:
    async with served(tmp_path, surface=surface) as wire:
        await wire.initialize()
        result = (await ask(wire, "prompts/get", {"name": name, "arguments": arguments}))["result"]
    calls = examples_in(result["messages"][0]["content"]["text"])
    assert len(calls) == examples
    for tool, given in calls:
        params = TABLE[tool].parse(given)
        assert isinstance(params, Query)
        # Raises where a step cannot run: an unknown op or parameter, or a wrong value.
        for planned in plan(Category.QUERY, Steps(surface, TABLE), params.steps, "steps", chained=True):
            planned.params({})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("nonsense", {}, "nonsense"),
        ("research", {}, "topic"),
        ("research", {"topic": "x", "depth": "deep"}, "depth"),
        ("research", {"topic": "x", "colour": "red"}, "colour"),
    ],
)
async def test_an_unknown_prompt_or_a_wrong_argument_is_invalid(
    tmp_path: Path, name: str, arguments: dict[str, str], said: str
) -> None:
    async with served(tmp_path) as wire:
        await wire.initialize()
        error = (await ask(wire, "prompts/get", {"name": name, "arguments": arguments}))["error"]
        assert error["code"] == -32602
        assert said in error["message"]


async def test_a_prompt_file_has_its_heading_as_title_and_its_text_as_one_message(tmp_path: Path) -> None:
    text = "---\ntitle: x\n---\nFirst some text.\n\n## Research *workflow* for `MCP`\r\n\nDo it.\n"
    write(tmp_path, "PROMPT-research-mcp.md", text)
    write(tmp_path, "PROMPT-plain.md", "no heading")
    for name in ("PROMPT-.md", "PROMPT-x.txt", "prompt-y.md", "README.md"):
        write(tmp_path, name, "# No prompt")
    async with served(tmp_path) as wire:
        await wire.initialize()
        found = await listed(wire)
        assert set(found) == BUILT_IN | {"research_mcp", "plain"}
        assert found["research_mcp"]["description"] == "Research workflow for MCP"
        assert found["plain"]["description"] == "Prompt in PROMPT-plain.md"
        result = (await ask(wire, "prompts/get", {"name": "research_mcp"}))["result"]
        assert result["messages"] == [{"role": "assistant", "content": {"type": "text", "text": text}}]


async def test_user_prompts_override_built_in_ones_and_prompts_in_roots_do_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write(tmp_path, "PROMPT-research.md", "# My own way")
    write(root, "PROMPT-research.md", "# Somebody's")
    write(root, "PROMPT-review-changes.md", "# Somebody's")
    write(root, "PROMPT-of-the-root.md", "# From the root")
    async with served(tmp_path, root) as wire:
        await wire.initialize()
        found = await listed(wire)
        assert found["research"]["description"] == "My own way"
        assert found["review_changes"]["arguments"]
        # The description says that its author is unknown.
        where = root / "prompts"
        assert found["of_the_root"]["description"] == (
            f"From the root (from {where}: written by the authors of that folder, not by you or Linckia)"
        )
        messages = [
            (await ask(wire, "prompts/get", {"name": name}))["result"]["messages"][0]["role"]
            for name in ("research", "review_changes", "of_the_root")
        ]
        assert messages == ["assistant", "user", "assistant"]


async def test_invalid_prompt_files_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("# Secret")
    write(root, "PROMPT-binary.md", b"# \xff\xfe")
    write(root, "PROMPT-long.md", b"# x\n" * (prompts.MAX_BYTES // 4 + 1))
    (root / "prompts" / "PROMPT-link.md").symlink_to(tmp_path / "secret")
    (root / "private").mkdir()
    (root / "private" / "keys").write_text("# Keys")
    (root / "prompts" / "PROMPT-denied.md").symlink_to(root / "private" / "keys")
    (root / "prompts" / "PROMPT-broken.md").symlink_to(tmp_path / "nothing")
    (root / "prompts" / "PROMPT-folder.md").mkdir()
    os.mkfifo(root / "prompts" / "PROMPT-pipe.md")
    async with served(tmp_path, root, denied=(str(root / "private"),)) as wire:
        await wire.initialize()
        assert set(await listed(wire)) == BUILT_IN
        assert (await ask(wire, "prompts/get", {"name": "link"}))["error"]["code"] == -32602
    assert "leads out of the roots" in caplog.text
    assert "may not be reached" in caplog.text
    assert "not UTF-8" in caplog.text


@pytest.mark.parametrize("modern", [False, True])
async def test_clients_are_notified_when_a_prompt_file_changes_and_the_list_is_updated(
    tmp_path: Path, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "POLL_S", 0.01)
    write(tmp_path, "PROMPT-one.md", "# One")
    async with served(tmp_path) as wire:
        params: dict[str, Any] = {}
        if modern:
            await wire.open_modern()
            params = {"_meta": META}
            listen = {**params, "notifications": {"promptsListChanged": True}}
            await wire.send({"jsonrpc": "2.0", "id": "s", "method": "subscriptions/listen", "params": listen})
            assert (await wire.receive())["method"] == "notifications/subscriptions/acknowledged"
        else:
            await wire.initialize()
        await ask(wire, "prompts/list", params)
        for description in ("Two", "Two, changed", None):
            if description is None:
                (tmp_path / "prompts" / "PROMPT-two.md").unlink()
            else:
                write(tmp_path, "PROMPT-two.md", f"# {description}")
            assert (await wire.receive())["method"] == "notifications/prompts/list_changed"
            found = {p["name"]: p for p in (await ask(wire, "prompts/list", params))["result"]["prompts"]}
            assert found.get("two", {}).get("description") == description
            assert (await ask(wire, "prompts/get", {"name": "one", **params}))["result"]["messages"]


@pytest.mark.parametrize(
    ("markdown", "said"),
    [
        ("# One\n# Two", "One"),
        ("text\n### Three ###\n", "Three"),
        ("Set\nin two lines\n===\n", "Set in two lines"),
        ("```\n# code\n```\n# Real", "Real"),
        ("#\n# Second", "Second"),
        ("#nothing", ""),
        ("", ""),
    ],
)
def test_the_first_heading(markdown: str, said: str) -> None:
    assert heading(markdown) == said
