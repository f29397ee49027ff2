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
        self._number += 1
        result = self._client.call(self._number, name, **arguments)
        assert not result["isError"], result
        return result["structuredContent"]


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
        listed = say("query", steps=[{"op": "list_memories", "params": {"scope": "session:work"}}])
        assert sorted(one["text"].split()[1] for one in listed["memories"]) == sorted(victims)
        assert {said["session"] for one in listed["memories"] for said in one["said"]} == {"work"}
        # Another client sees the user's memories, and by its label those of the session.
        assert len(say_other("list_memories")["memories"]) == len(victims)
        assert [one["text"] for one in say_other("recall", query="killed", scope="session:work", limit=9)["memories"]]
