"""Skills are served as the extension says, and tell agents only of tools that exist, with arguments that are valid."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from proto import ops
from proto.errors import UnknownOperation
from proto.operation import CLIENT, Role
from services.front import skill_files
from services.front.skill_files import EXTENSION, Skill, frontmatter_of
from tests.unit.front.wire import META, Wire, connected, gateway_in_process

TABLE = ops.load()
SKILLS = list(skill_files.skills().values())

CALLED = {op.name for op in TABLE.values() if op.admits(CLIENT)}
STEPS = {op.name for op in TABLE.values() if op.admits(CLIENT)}

WORDS = {field.encode_name for op in TABLE.values() for field in msgspec.structs.fields(op.params)} | {
    "all", "change", "conflicts_with", "date", "degraded", "died", "digest", "file", "gap", "may_replace", "more",
    "next", "next_cursor", "not_kept", "old", "overloaded", "quarantined", "replaced", "service", "stale", "this",
    "timeout", "unavailable", "user",
}  # fmt: skip
"""Other words in code style: parameters, and fields and values of results."""


def text_of(skill: Skill) -> str:
    return skill.files[0].data.decode()


def examples(skill: Skill) -> Iterator[dict[str, Any]]:
    for block in re.findall(r"```json\n(.*?)```", text_of(skill), re.DOTALL):
        yield json.loads(block)


def named(skill: Skill) -> set[str]:
    """Words in the form of a tool's name, outside of examples."""
    codes = re.findall(r"`([a-z][a-z0-9_-]*)`", re.sub(r"```.*?```", "", text_of(skill), flags=re.DOTALL))
    return set(codes) - WORDS - {each.frontmatter["name"] for each in SKILLS}


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.frontmatter["name"])
def test_skill_names_only_tools_that_clients_may_call(skill: Skill) -> None:
    assert named(skill) - CALLED - STEPS == set()
    for op in re.findall(r"\bops? `([^`]+)`", text_of(skill)):
        assert op in STEPS


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.frontmatter["name"])
def test_examples_of_a_skill_are_valid_calls(skill: Skill) -> None:
    found = list(examples(skill))
    assert found
    for call in found:
        op = TABLE.find(call["name"])
        assert op.role is Role.TOOL
        op.parse(call["arguments"])
        for step in call["arguments"].get("steps", []):
            (inner,) = (each for each in TABLE.values() if each.admits(CLIENT) and each.name == step["op"])
            inner.parse({name: "0" * 64 if name == "hash" else value for name, value in step["params"].items()})


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.frontmatter["name"])
def test_skill_has_the_form_of_an_agent_skill(skill: Skill) -> None:
    text = text_of(skill)
    name = skill.frontmatter["name"]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert len(name) <= 64
    assert skill.uri == f"skill://{name}/SKILL.md"
    assert 40 < len(skill.frontmatter["description"]) <= 1024
    assert len(text.splitlines()) < 120
    # The front matter is read by rules of its own: another reader finds the same.
    assert yaml.safe_load(text.split("---\n")[1]) == skill.frontmatter


def test_every_mentioned_skill_exists() -> None:
    for skill in SKILLS:
        for name in re.findall(r"the skill\s+`([^`]+)`", text_of(skill)):
            assert f"skill://{name}/SKILL.md" in skill_files.skills()


def test_a_tool_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(UnknownOperation):
        TABLE.find("no_such_tool")
    made = skill_files.SkillFile("skill://a/SKILL.md", b"Use `no_such_tool` and the op `nothing`.", "text/markdown")
    assert named(Skill({"name": "a", "description": "b"}, (made,))) == {"no_such_tool", "nothing"}


@pytest.mark.parametrize(
    "text",
    ["", "name: a\n", "---\nname: 'a'\n---\n", "---\nname: a: b\n---\n", "---\nname: [a]\n---\n", "---\na\n---\n"],
)
def test_front_matter_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"front matter|is not NAME: TEXT"):
        frontmatter_of(text)


async def ask(wire: Wire, method: str, params: dict[str, Any]) -> dict[str, Any]:
    await wire.send({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    answer: dict[str, Any] = await wire.receive()
    return answer


async def test_skills_are_listed_got_and_read_with_the_digests_that_clients_check() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.open_modern()
        meta = {"_meta": META}
        found = (await ask(wire, "server/discover", meta))["result"]
        assert found["capabilities"]["extensions"] == {EXTENSION: {"directoryRead": True}}
        listed = (await ask(wire, "skills/list", meta))["result"]
        assert (listed["resultType"], listed["cacheScope"]) == ("complete", "public")
        assert listed["ttlMs"] > 0
        assert len(listed["skills"]) == len(SKILLS)
        for entry in listed["skills"]:
            got = (await ask(wire, "skills/get", {**meta, "uri": entry["uri"]}))["result"]
            assert got["skill"] == entry
            assert got["resultType"] == "complete"
            for resource in entry["resources"]:
                (contents,) = (await ask(wire, "resources/read", {**meta, "uri": resource["uri"]}))["result"][
                    "contents"
                ]
                data = contents["text"].encode()
                assert contents["mimeType"] == "text/markdown"
                assert len(data) == resource["size"]
                assert f"sha256:{hashlib.sha256(data).hexdigest()}" == resource["digest"]
            children = await ask(wire, "resources/directory/read", {**meta, "uri": entry["uri"][: -len("/SKILL.md")]})
            assert [each["uri"] for each in children["result"]["resources"]] == [entry["uri"]]
            assert children["result"]["resultType"] == "complete"
        resources = (await ask(wire, "resources/list", meta))["result"]["resources"]
        assert {each["uri"] for each in listed["skills"]} <= {each["uri"] for each in resources}


@pytest.mark.parametrize(
    ("method", "uri", "said"),
    [
        ("skills/get", "skill://no/SKILL.md", "No skill is served at"),
        ("skills/get", "skill://search-well", "No skill is served at"),
        ("resources/directory/read", "skill://search-well/SKILL.md", "is not a directory resource"),
        ("resources/directory/read", "skill://no", "is not a directory resource"),
        ("resources/read", "skill://search-well/none.md", "Resource not found"),
    ],
)
async def test_invalid_uris_of_skills_are_invalid_parameters(method: str, uri: str, said: str) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.open_modern()
        error = (await ask(wire, method, {"_meta": META, "uri": uri}))["error"]
        assert error["code"] == -32602
        assert said in error["message"]


async def test_clients_with_a_handshake_read_skills_as_resources() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        answer = await ask(wire, "resources/read", {"uri": SKILLS[0].uri})
        assert answer["result"]["contents"][0]["text"] == text_of(SKILLS[0])


async def test_a_surface_of_few_tools_has_no_skills() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway, "yaml") as wire:
        await wire.open_modern()
        found = (await ask(wire, "server/discover", {"_meta": META}))["result"]
        assert "extensions" not in found["capabilities"]
        assert (await ask(wire, "skills/list", {"_meta": META}))["error"]["code"] == -32601
