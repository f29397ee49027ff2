"""The search knows the turn before a turn, its tools and its place, and a hit names its files and changes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proto.ops.retrieve import Group, RetrievePut
from services.retrieve import main as retrieve
from services.runtime.handlers import Context, Environment, Handlers
from services.transcripts import forest
from services.transcripts.messages import MAX_SHOWN, changes_of, files_of
from services.transcripts.operations.conversations import Block, TranscriptHit, TranscriptsSearch
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.unit.transcripts.test_layouts import claude, codex, item, result, spoken, take_in, use
from tests.unit.transcripts.test_search import found

PATCH = (
    "*** Begin Patch\n*** Update File: sea/star.py\n@@\n-arms = 4\n+arms = 5\n*** Add File: sea/crab.py\n*** End Patch"
)


@contextlib.asynccontextmanager
async def keeping(env: Environment, groups: dict[str, Group]) -> AsyncIterator[Handlers]:
    """`retrieve`; `groups` are those that it was given, by the text of their first piece."""
    async with retrieve.open_service(env) as handlers:
        _, ordinary = handlers.by_name.pop("retrieve_put")

        @handlers.handle(RetrievePut)
        async def put(params: RetrievePut, ctx: Context) -> object:
            groups.update((each.items[0].text, each) for each in params.groups)
            return await ordinary(params, ctx)

        yield handlers


async def hit(bench: Bench, query: str, **more: object) -> TranscriptHit:
    result = await bench.call(TranscriptsSearch(query=query, top_k=1, **more))  # type: ignore[arg-type]
    return result.results[0]


def calling(name: str, arguments: str, id_: str) -> Json:
    call = {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def answered(id_: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": id_, "content": text}


async def test_the_turn_before_is_the_nearest_one_that_the_search_has(tmp_path: Path) -> None:
    groups: dict[str, Group] = {}
    silent = {"role": "assistant", "content": None}
    async with serving(tmp_path, retrieve=functools.partial(keeping, groups=groups)) as bench:
        await post(bench, payload([user("starfish"), silent, user(" "), user("seahorse")], "pipefish"))
        await post(bench, payload([user("lonely")], "indeed"))
        assert await found(bench, "pipefish") == ["pipefish"]
        first = groups["starfish"]
        assert "after" not in first.metadata
        assert groups["seahorse"].metadata["after"] == first.id
        assert groups["pipefish"].metadata["after"] == groups["seahorse"].id
        assert [groups[text].metadata["root"] for text in ("starfish", "seahorse", "pipefish")] == [first.id] * 3
        assert (groups["indeed"].metadata["after"], groups["indeed"].metadata["root"]) == (groups["lonely"].id,) * 2


LOOKED = [
    user("Why does it fail?"),
    calling("run_tests", '{"path": "tests/tide.py"}', "c1"),
    answered("c1", "E   TideError: ebb at 0xdeadbeef"),
    calling("read_file", '{"path": "tide.py"}', "c2"),
    answered("c2", "def ebb(): ..."),
]


async def test_an_error_that_only_the_output_of_a_tool_had_is_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload(LOOKED, "The moon is to blame."))
        for query in ("0xdeadbeef", "TideError: ebb at 0xdeadbeef"):
            one = await hit(bench, query)
            assert (one.role, one.preview) == ("tool", "E   TideError: ebb at 0xdeadbeef")


async def test_turns_are_narrowed_to_calls_and_results_of_a_tool(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("tide"), *LOOKED], "tide"))
        call = 'Tool call: run_tests({"path":"tests/tide.py"})'
        query = "tide TideError run_tests read_file ebb"
        # A result names its tool by the id of the call only.
        assert sorted(await found(bench, query, tool="run_tests")) == ["E   TideError: ebb at 0xdeadbeef", call]
        every = await found(bench, query, tool="*")
        assert len(every) == 4
        assert "tide" not in every
        assert await found(bench, query, tool="run") == []
        assert await found(bench, query, tool="run_tests", role="assistant") == [call]
        assert len(await found(bench, query, top_k=20)) >= 6


async def test_a_hit_names_files_changes_machine_and_branch_of_a_claude_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(id_: str, name: str, file: str) -> Json:
        return {"type": "tool_use", "id": id_, "name": name, "input": {"file_path": file, "new_string": "arms"}}

    said = '{"change": "c-17", "path": "/home/u/sea/star.py"} and {"change":"c-18"} and {"change": "c-17"}'
    records = [
        claude("u1", None, "user", "Give the star five arms", gitBranch="arms"),
        claude("a1", "u1", "assistant", [
            edit("t1", "Edit", "/home/u/sea/star.py"), edit("t2", "Write", "/home/u/sea/crab.py"),
            edit("t3", "Edit", "/home/u/sea/star.py"), use("t4", "yaml_set"),
        ], id="m1", gitBranch="arms"),
        claude("r1", "a1", "user", [result("t1", said)], gitBranch="arms"),
        claude("a2", "r1", "assistant", [{"type": "text", "text": "Done."}], id="m2"),
    ]  # fmt: skip
    async with serving(tmp_path) as bench:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(forest, "MACHINE", "desk")
            await take_in(bench, records)
        edited = await hit(bench, "new_string", tool="Edit")
        assert edited.files == ["/home/u/sea/star.py", "/home/u/sea/crab.py", "t4"]
        assert (edited.branch, edited.machine, edited.changes) == ("arms", "desk", [])
        reported = await hit(bench, "c-18")
        assert (reported.changes, reported.files, reported.branch) == (["c-17", "c-18"], [], "arms")
        assert (await hit(bench, "Done")).branch == ""


async def test_a_hit_names_files_and_branch_of_a_codex_session(tmp_path: Path) -> None:
    records = [
        codex("session_meta", id="s", cwd="/home/u/sea", cli_version="0.50", git={"branch": "main"}),
        spoken("user", "Five arms, please"),
        item("custom_tool_call", name="apply_patch", input=PATCH, call_id="c1"),
        item("custom_tool_call_output", call_id="c1", output="Success"),
        spoken("assistant", "Patched."),
    ]
    async with serving(tmp_path) as bench:
        await take_in(bench, records)
        patched = await hit(bench, "apply_patch", tool="apply_patch")
        assert (patched.files, patched.branch) == (["sea/star.py", "sea/crab.py"], "main")
        assert (await hit(bench, "Patched")).branch == "main"


@pytest.mark.parametrize(
    "given", [{"path": 3}, {"file_path": ""}, {"input": ["*** Add File: a"]}, "path", None, {"content": "path"}]
)
def test_arguments_without_a_path_name_no_file(given: Any) -> None:
    assert files_of([Block(type="tool_use", is_error=False, tool_name="Write", tool_input=given)]) == []


def test_only_so_many_files_and_changes_are_named() -> None:
    calls = [Block(type="tool_use", is_error=False, tool_name="Write", tool_input={"path": f"f{n}"}) for n in range(50)]
    assert files_of(calls) == [f"f{n}" for n in range(MAX_SHOWN)]
    output = "".join(f'{{"change":"c{n}"}}' for n in range(50))
    assert changes_of([Block(type="tool_result", is_error=False, tool_output=output)]) == [
        f"c{n}" for n in range(MAX_SHOWN)
    ]
    assert changes_of([Block(type="text", is_error=False, text=output)]) == []


async def test_turns_that_a_client_posts_here_name_neither_machine_nor_branch(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, payload([user("starfish")], assistant("sea star")))
        one = await hit(bench, "starfish")
        assert (one.machine, one.branch, one.files, one.changes) == ("", "", [], [])
