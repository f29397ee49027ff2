"""What an agent remembers over stdio, in a session of documents, through the deaths of all that has to do with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import Client
from tests.system.cli.clients import StdioClient, data_directory, kernel_pid, stdio_client, wait_until_ended

SERVICES = "documents,retrieve,memory"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with data_directory(tmp_path / "data") as path:
        yield path


class Talk:
    """Calls tools one after the other; returns the structured content of each."""

    def __init__(self, client: StdioClient) -> None:
        client.initialize()
        self._client = client
        self._number = 0

    def __call__(self, name: str, **arguments: Any) -> Any:
        result = self._result(name, **arguments)
        assert not result["isError"], result
        return result["structuredContent"]

    def refused(self, name: str, **arguments: Any) -> str:
        """Return the error of a call that must fail."""
        result = self._result(name, **arguments)
        assert result["isError"], result
        return str(result["content"][0]["text"])

    def _result(self, name: str, **arguments: Any) -> Any:
        self._number += 1
        return self._client.call(self._number, name, **arguments)


def kill(data: Path, name: str) -> None:
    """A service, or the kernel."""
    pid = kernel_pid(data)
    if name == "kernel":
        os.kill(pid, signal.SIGKILL)
        wait_until_ended(data, pid)
        return
    with Client(data) as client:
        (service,) = [each for each in client.call_named("kernel_status", {})["services"] if each["name"] == name]
    if service["pid"]:
        os.kill(service["pid"], signal.SIGKILL)


def test_a_session_labels_documents_and_memories_through_every_death(data: Path) -> None:
    victims = ("front", "memory", "documents", "retrieve", "kernel")
    with stdio_client(data, services=SERVICES) as client, stdio_client(data, services=SERVICES) as other:
        say, say_other = Talk(client), Talk(other)
        say("session", action="start", params={"label": "work"})
        for victim in victims:
            kill(data, victim)
            said = {"text": f"The {victim} was killed once", "scope": "session" if victim == "kernel" else "user"}
            done = say("execute", operations=[{"op": "add", "params": {"name": f"{victim}.txt", "content": victim}}])
            assert done["succeeded"] == 1
            assert say("remember", **said)["scope"] == ("session:work" if victim == "kernel" else "user")
            assert victim in [
                one["text"].split()[1] for one in say("recall", query=f"who was killed? {victim}")["memories"]
            ]
        stopped = say("session", action="stop")
        assert (stopped["label"], stopped["documents"]) == ("work", len(victims))
        assert "session" not in say("remember", text="Nothing was killed")
        listed = say("query", steps=[{"op": "memory_list", "params": {"scope": "session:work"}}])
        assert sorted(one["text"].split()[1] for one in listed["memories"]) == sorted(victims)
        assert {said["session"] for one in listed["memories"] for said in one["said"]} == {"work"}
        # Another client sees the user's memories, and by its label those of the session.
        assert len(say_other("memory_list")["memories"]) == len(victims)
        assert [one["text"] for one in say_other("recall", query="killed", scope="session:work", limit=9)["memories"]]


def test_what_replaces_what_survives_every_death_and_wrong_arguments_change_nothing(data: Path) -> None:
    def texts(**more: Any) -> list[str]:
        return [one["text"] for one in say("memory_recall", query="where is Ann", **more)["memories"]]

    with stdio_client(data, services=SERVICES) as client:
        say = Talk(client)
        berlin = say("memory_add", text="Ann is in Berlin", valid_from="2020-05-01")
        kill(data, "memory")
        hamburg = say("memory_add", text="Ann has moved to Hamburg", valid_from="2024-03-01")
        assert [one["id"] for one in hamburg["may_replace"]] == [berlin["id"]]
        assert hamburg["id"] in hamburg["note"]
        assert set(texts()) == {"Ann is in Berlin", "Ann has moved to Hamburg"}
        kill(data, "memory")
        replaced = say("memory_update", id=hamburg["id"], supersedes=[berlin["id"]])["replaced"]
        assert replaced == [{"id": berlin["id"], "text": "Ann is in Berlin", "until": "2024-02-29T23:59:59Z"}]
        for name, arguments, words in (
            ("memory_add", {"text": "Ann is in Ulm", "supersedes": ["nobody"]}, ("supersedes", "nobody")),
            ("memory_add", {"text": "Ann is in Ulm", "supersedes": 5}, ("supersedes",)),
            ("memory_add", {"text": "Ann is in Ulm", "valid_from": "one day"}, ("valid_from", "a duration")),
            ("memory_update", {"id": berlin["id"], "supersedes": [hamburg["id"]]}, ("supersedes", "replaces")),
            ("memory_update", {"id": berlin["id"], "valid_until": "2001-01-01"}, ("valid_until", "before it begins")),
            ("memory_recall", {"query": "Ann", "as_of": "some day"}, ("as_of", "is not a time")),
            ("memory_recall", {"query": "Ann", "as_of": "2021", "include_expired": True}, ("include_expired",)),
        ):
            said = say.refused(name, **arguments)
            assert all(word in said for word in words), said
        for victim in ("memory", "retrieve", "kernel"):
            kill(data, victim)
            assert texts() == ["Ann has moved to Hamburg"]
            assert texts(as_of="2021-01-01") == ["Ann is in Berlin"]
            assert texts(as_of="2024-02-29") == ["Ann is in Berlin"]
            assert texts(as_of="2024-03-01") == ["Ann has moved to Hamburg"]
            assert texts(as_of="2019-01-01") == []
        listed = {one["text"]: one for one in say("memory_list")["memories"]}
        assert listed["Ann is in Berlin"]["stale"] == "replaced by a newer one"
        assert listed["Ann is in Berlin"]["superseded_by"] == hamburg["id"]
        say("memory_forget", id=hamburg["id"])
        kill(data, "memory")
        assert texts() == ["Ann is in Berlin"]
