"""`scripts/bench agents`: its tasks are well formed, and its agents see no more than a client does."""

from __future__ import annotations

import ast
import http.server
import inspect
import json
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from proto import ops
from services.front.surfaces.steps import Steps
from tests.bench.agents import chooser, model, tree
from tests.bench.agents.chooser import Agent, Answer, Candidate, Json, Request
from tests.bench.agents.model import ModelAgent
from tests.bench.agents.tasks import State, Task, load

ROOT = Path("/nowhere/at/all")
TASKS = load(ROOT).task
OPERATIONS = {name for group in Steps("all", ops.load()).ops.values() for name in group}

GREET = {
    "name": "xyzzy",
    "description": "Greets a person by name.",
    "inputSchema": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
}
FIND = {
    "name": "plugh",
    "description": "Looks people up in the register.",
    "inputSchema": {"type": "object", "properties": {"q": {}, "words": {"type": "string"}}, "required": ["words"]},
}
OPEN = {
    "name": "plover",
    "description": "Opens the record of a person in the register.",
    "inputSchema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}


class Recorded:
    """A server that answers each tool with one text, and its calls."""

    def __init__(self, answers: dict[str, str], *tools: Json) -> None:
        self._answers = answers
        self._tools = tools
        self.calls: list[tuple[str, Json]] = []

    def tools(self) -> Sequence[Json]:
        return self._tools

    def call(self, name: str, arguments: Json) -> Answer:
        self.calls.append((name, arguments))
        return Answer(self._answers.get(name, "no"), name not in self._answers)


def test_there_are_sixty_different_tasks() -> None:
    assert len(TASKS) == len({task.request for task in TASKS}) == 60


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.request[:40])
def test_each_task_is_well_formed(task: Task) -> None:
    assert {name for name, _ in task.calls} <= OPERATIONS
    named = {name for name in OPERATIONS if "_" in name}
    assert not named & set(re.findall(r"\w+", task.request)), "a person does not know names of operations"
    assert task.says or task.changes(), "nothing shows that it is solved"
    told = json.dumps([task.request, task.facts]).casefold()
    assert not task.says or any(each.casefold() not in told for each in task.says), "what is asked for is told"
    references = re.findall(r'"\$([\w.]+)"', json.dumps([task.calls, task.peers]))
    for name in references:
        number, _, value = name.rpartition(".")
        assert (int(number) < len(task.calls) and value) if number else name in task.facts
    assert task.peers.keys() <= {"filesystem", "memory", "git"}


def test_a_task_is_solved_only_by_what_it_asks_for(tmp_path: Path) -> None:
    state = State(("x", {}), ["kept"], ["lost"])
    task = Task("?", {}, [], says=["Yes"], file="a", has=["new"], lacks=["old"], exist=["b"], gone=["c"], state=state)
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").touch()

    def solved(text: str = "yes", stored: str = "kept", *, failed: bool = False) -> bool:
        return task.is_solved(tmp_path, Answer(text, failed), lambda _: stored)

    assert solved()
    assert not solved("no")
    assert not solved(failed=True)
    assert not solved(stored="")
    assert not solved(stored="kept lost")
    (tmp_path / "c").touch()
    assert not solved()
    (tmp_path / "c").unlink()
    (tmp_path / "b").unlink()
    assert not solved()
    (tmp_path / "b").touch()
    (tmp_path / "a").write_text("new old")
    assert not solved()


def test_the_files_are_the_same_each_time(tmp_path: Path) -> None:
    tree.restore(tmp_path, absent=())
    (tmp_path / "README.md").write_text("changed")
    (tmp_path / "more").touch()
    (tmp_path / "old" / "thesis.txt").unlink()
    assert tree.restore(tmp_path) == 3
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        name for name in tree.FILES if name not in tree.ABSENT
    }


def test_an_agent_knows_no_server() -> None:
    for module in (chooser, model):
        nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
        imported = {each.module or "" for each in nodes if isinstance(each, ast.ImportFrom)}
        imported |= {name.name for each in nodes if isinstance(each, ast.Import) for name in each.names}
        ours = {name for name in imported if name.split(".")[0] in {"proto", "services", "kernel", "tests"}}
        assert ours <= {"tests.bench.agents.chooser"}
        texts = {each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        assert not OPERATIONS & {word for text in texts for word in re.findall(r"\w+_\w+", text)}
    assert Request._fields == ("text", "facts")


def test_a_tool_is_found_by_its_description_and_filled_by_a_synonym() -> None:
    server = Recorded({"xyzzy": "Hello, Ada"}, FIND, GREET)
    agent = Agent(server, chooser.by_words)
    assert agent.solve(Request("greet a person", {"heading": "Ada"}), lambda answer: "Ada" in answer.text)
    assert server.calls == [("xyzzy", {"title": "Ada"})]


def test_a_tool_that_lacks_an_argument_waits_for_the_answer_that_has_it() -> None:
    server = Recorded({"plugh": '{"found": [{"id": 7}, {"id": 8}]}', "plover": "born in 1815"}, OPEN, FIND)
    agent = Agent(server, chooser.by_words)
    assert agent.solve(Request("open the record of a person", {"query": "Ada"}), lambda answer: "1815" in answer.text)
    assert server.calls == [("plugh", {"words": "Ada"}), ("plover", {"id": 7})]


def test_an_agent_makes_three_calls_at_most_and_none_without_what_was_asked() -> None:
    tools = [{**GREET, "name": f"tool{n}"} for n in range(5)]
    server = Recorded({}, *tools)
    assert not Agent(server, chooser.by_words).solve(Request("greet", {"name": "Ada", "heading": "x"}), lambda _: True)
    assert len(server.calls) == 3
    server = Recorded({"idle": "…"}, {"name": "idle", "inputSchema": {"type": "object"}})
    assert not Agent(server, chooser.by_words).solve(Request("greet", {"name": "Ada"}), lambda _: True)
    assert server.calls == []


def test_arguments_are_assigned_so_that_all_required_ones_are_filled() -> None:
    text = {"type": "string"}
    place = {"type": "object", "properties": {"file": text, "path": text}, "required": ["file", "path"]}
    facts = {"path": "/a.yaml", "key": "server.port"}
    assert chooser.arguments(place, facts) == {"file": "/a.yaml", "path": "server.port"}
    assert chooser.arguments(place, {"path": "/a.yaml"}) is None
    move = {"type": "object", "properties": {"from": text, "to": text}, "required": ["from", "to"]}
    many = {"type": "object", "properties": {"moves": {"type": "array", "items": {"$ref": "#/$defs/Move"}}}}
    whole = chooser.resolved({**many, "required": ["moves"], "$defs": {"Move": move}})
    assert chooser.arguments(whole, {"path": "a", "to": "b"}) == {"moves": [{"from": "a", "to": "b"}]}
    limited = {"type": "object", "properties": {"type": {"type": "string", "enum": ["x"]}, "paths": {"type": "array"}}}
    assert chooser.arguments(limited, {"type": "y", "path": "a"}) == {"paths": ["a"]}


def test_vectors_rank_by_the_cosine() -> None:
    vectors = {"go": (1.0, 0.0), "A. near": (0.9, 0.1), "b. far.": (0.0, 1.0)}

    class Vector(tuple[float, ...]):
        def __matmul__(self, other: Vector) -> float:
            return sum(a * b for a, b in zip(self, other, strict=True))

    rank = chooser.by_vectors(lambda texts: [Vector(vectors[text]) for text in texts])
    assert rank("go", [Candidate("b", "", "far. More.", {}), Candidate("a", "A", "near", {})]) == [1, 0]


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[Any]]]:
    """A model that looks a person up, opens the record, and then says that it is done; and what it was sent."""
    received: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.path, self.headers["Authorization"], body))
            calls = (("plugh", '{"words": "Ada"}'), ("plover", "{"), ("plover", '{"id": 7}'))
            turn = len(received) - 1
            message: Json = {"role": "assistant", "content": "done"}
            if turn < len(calls):
                function = {"name": calls[turn][0], "arguments": calls[turn][1]}
                message["tool_calls"] = [{"id": f"c{turn}", "type": "function", "function": function}]
            reply = json.dumps({"choices": [{"message": message}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", received
        server.shutdown()
        thread.join()


def test_a_model_calls_tools_until_the_task_is_solved(endpoint: tuple[str, list[Any]]) -> None:
    url, received = endpoint
    server = Recorded({"plugh": '{"id": 7}', "plover": "born in 1815"}, OPEN, FIND)
    agent = ModelAgent(server, url, "some-model", "secret")
    assert agent.solve(Request("when was Ada born?", {"query": "Ada"}), lambda answer: "1815" in answer.text)
    assert server.calls == [("plugh", {"words": "Ada"}), ("plover", {"id": 7})]
    path, authorization, body = received[-1]
    assert (path, authorization) == ("/v1/chat/completions", "Bearer secret")
    assert body["model"] == "some-model"
    assert [each["function"]["name"] for each in body["tools"]] == ["plover", "plugh"]
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert "not JSON" in body["messages"][-1]["content"]


def test_a_model_that_calls_nothing_more_has_not_solved_the_task(endpoint: tuple[str, list[Any]]) -> None:
    server = Recorded({"plugh": "{}", "plover": "{}"}, OPEN, FIND)
    assert not ModelAgent(server, endpoint[0], "m").solve(Request("?", {}), lambda _: False)
    assert len(endpoint[1]) == 4
