"""The log of events through kills of the service, of the watcher and of the kernel, and the ways to follow it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import ControlError
from tests.system.access.tokens import HttpClient, create
from tests.system.running import HTTP, REPOSITORY, RunningKernel, running, wait_until

SERVICES = ("watch", "events", "files", "echo")


def read(kernel: RunningKernel, after: int, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = kernel.call("events_read", {"after": after, **params})
    return found


def read_all(kernel: RunningKernel, after: int = 0) -> list[dict[str, Any]]:
    """All events after one, by small pages."""
    events: list[dict[str, Any]] = []
    while True:
        page = read(kernel, after, limit=7)
        events += page["events"]
        after = page["next"]
        if not page["more"]:
            return events


def names(events: list[dict[str, Any]], what: str = "created") -> list[str]:
    return [Path(each["subject"]).name for each in events if each["kind"] == "file" and each["what"] == what]


def follow_files(kernel: RunningKernel, root: Path) -> int:
    """Wait until changes of files are seen; return the cursor."""
    probe = root / "probe"

    def is_seen() -> bool:
        probe.write_text("x" * (1 + probe.stat().st_size if probe.exists() else 1))
        return bool(read(kernel, 0, kinds=["file"])["events"])

    wait_until(is_seen)
    return int(kernel.call("events_read")["next"])


def writes(kernel: RunningKernel, root: Path, number: int) -> None:
    """Create one file beside Linckia, and one through it."""
    (root / f"{number}.txt").write_text("x")
    with contextlib.suppress(ControlError):
        kernel.call("files_write", {"path": str(root / f"{number}.md"), "content": "x"})


def check(events: list[dict[str, Any]], written: range) -> None:
    """Nothing is missing, and numbers ascend without a gap."""
    numbers = [each["number"] for each in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    texts = [name for name in names(events) if name.endswith(".txt")]
    assert sorted(texts) == sorted(f"{number}.txt" for number in written)
    assert not [each for each in events if each["kind"] == "gap"]


def test_no_event_is_lost_or_repeated_when_services_are_killed_in_a_stream_of_changes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with running(tmp_path / "data", [root], services=SERVICES) as kernel:
        start = follow_files(kernel, root)
        for number in range(60):
            writes(kernel, root, number)
            if number % 12 == 5:
                kernel.kill("events")
            elif number % 12 == 11:
                kernel.kill("watch")
        kernel.wait_ready()
        wanted = {f"{number}{suffix}" for number in range(60) for suffix in (".txt", ".md")}
        wait_until(lambda: wanted <= set(names(read_all(kernel, start))), said=lambda: read_all(kernel, start)[-3:])
        changes = wait_until(
            lambda: found if len(found := changes_of(read_all(kernel, start))) == 60 else None,
            said=lambda: changes_of(read_all(kernel, start)),
        )
        assert changes == [f"path={root}/{number}.md" for number in range(60)]
        for service in ("events", "watch"):
            lives = lives_until_recovered(kernel, start, service)
            assert lives.count("died") == 5
            # One that is killed again before it was ready has not recovered from the first death.
            assert lives[0] == "died"
            assert ("recovered", "recovered") not in itertools.pairwise(lives)
        events = read_all(kernel, start)
        check(events, range(60))
        assert next(each["who"] for each in events if each["kind"] == "change") == "operator"


def lives_until_recovered(kernel: RunningKernel, start: int, service: str, deaths: int = 5) -> list[str]:
    """Wait until a service has recovered from its last death; return its deaths and recoveries."""

    def lives() -> list[str]:
        found = [each["what"] for each in read_all(kernel, start) if each["subject"] == service]
        return [what for what in found if what in ("died", "recovered")]

    def is_over(found: list[str]) -> bool:
        return found.count("died") >= deaths and found[-1] == "recovered"

    return wait_until(lambda: found if is_over(found := lives()) else None, said=lives)


def changes_of(events: list[dict[str, Any]]) -> list[str]:
    return [each["subject"] for each in events if each["what"] == "files_write"]


def test_cursor_outlives_kernels_and_a_reader_that_was_away_gets_everything(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    after, seen, written = 0, [], 0
    for turn in range(3):
        with running(data, [root], services=SERVICES) as kernel:
            if not turn:
                after = follow_files(kernel, root)
            for _ in range(20):
                (root / f"{written}.txt").write_text("x")
                written += 1
            got = read(kernel, after)
            seen += got["events"]
            after = got["next"]
            kernel.process.kill()
            kernel.process.wait()
        # Nobody is there to see these.
        for _ in range(5):
            (root / f"{written}.txt").write_text("x")
            written += 1
    with running(data, [root], services=SERVICES) as kernel:
        wanted = {f"{number}.txt" for number in range(written)}
        wait_until(lambda: wanted <= set(names(seen + read_all(kernel, after))))
        events = seen + read_all(kernel, after)
        check(events, range(written))
        started = [each for each in events if (each["subject"], each["what"]) == ("kernel", "started")]
        assert len(started) == 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningKernel, Path]]:
    root = tmp_path_factory.mktemp("root")
    (root / "mine").mkdir()
    with running(tmp_path_factory.mktemp("data"), [root], options=HTTP, services=SERVICES, token=True) as kernel:
        follow_files(kernel, root)
        yield kernel, root


class Stream:
    """Server-sent events, read block by block."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response

    def block(self) -> dict[str, str]:
        """The next block's fields; a comment's has the name ''."""
        found: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(":")
            found[name] = value.strip()
        return found

    def event(self) -> tuple[int, dict[str, Any]]:
        while True:
            block = self.block()
            if "data" in block:
                return int(block["id"]), json.loads(block["data"])


def test_stream_continues_after_the_last_event_id(place: tuple[RunningKernel, Path]) -> None:
    kernel, root = place
    client = HttpClient(kernel, kernel.status()["token"])
    folder = root / "streamed"
    folder.mkdir()
    start = kernel.call("events_read")["next"]
    with client.open("GET", f"/v1/events?after={start}&kinds=file&path={folder}") as response:
        assert response.getheader("content-type", "").startswith("text/event-stream")
        stream = Stream(response)
        (folder / "a").write_text("x")
        number, event = stream.event()
        while event["subject"] != str(folder / "a"):
            number, event = stream.event()
    assert (event["number"], event["what"]) == (number, "created")
    (folder / "b").write_text("x")
    kernel.kill("events")
    with client.open(
        "GET", f"/v1/events?after={start}&kinds=file&path={folder}", last_event_id=str(number)
    ) as response:
        stream = Stream(response)
        _, event = stream.event()
        while event["subject"] == str(folder / "a"):
            # Written a moment after it was created.
            _, event = stream.event()
        assert event["subject"] == str(folder / "b")
        # The stream outlives the service.
        kernel.kill("events")
        (folder / "c").write_text("x")
        while event["subject"] != str(folder / "c"):
            _, event = stream.event()


def test_stream_ends_with_the_front_and_refuses_what_is_wrong(place: tuple[RunningKernel, Path]) -> None:
    kernel, _ = place
    client = HttpClient(kernel, kernel.status()["token"])
    for query, said in (
        ("after=99999999", "the latest event is"),
        ("after=x", "after"),
        ("kinds=zebra", "kinds"),
        ("zebra=1", "zebra"),
        ("path=/etc", "path"),
    ):
        answer = client.request("GET", f"/v1/events?{query}")
        assert (answer.status, said in answer.text) == (400, True), answer.text
    assert HttpClient(kernel, None).request("GET", "/v1/events").status == 401
    with client.open("GET", "/v1/events") as response:
        assert Stream(response).block() == {"retry": "1000"}
        kernel.call("kernel_restart", {"service": "front"})
        assert response.read().count(b"data:") < 50


def test_token_with_roots_follows_only_these_and_one_that_reads_follows_all(place: tuple[RunningKernel, Path]) -> None:
    kernel, root = place
    limited = HttpClient(kernel, create(kernel, "limited", "--root", str(root / "mine")))
    reading = HttpClient(kernel, create(kernel, "reading", "--read-only"))
    start = kernel.call("events_read")["next"]
    (root / "theirs.txt").write_text("x")
    (root / "mine" / "mine.txt").write_text("x")
    kernel.call("files_write", {"path": str(root / "last.md"), "content": "x"})
    wait_until(lambda: {"theirs.txt", "mine.txt", "last.md"} <= set(names(read_all(kernel, start))))
    wait_until(lambda: changes_of(read_all(kernel, start)))

    def events_of(client: HttpClient) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.tool("events_read", {"after": start}).json["result"]["structuredContent"][
            "events"
        ]
        return found

    assert set(names(events_of(limited))) == {"mine.txt"}
    assert {each["kind"] for each in events_of(limited)} == {"file"}
    assert {"theirs.txt", "mine.txt", "last.md"} <= set(names(events_of(reading)))
    with limited.open("GET", f"/v1/events?after={start}") as response:
        assert Stream(response).event()[1]["subject"] == str(root / "mine" / "mine.txt")


def test_a_subscriber_of_the_resource_is_notified_and_reads_new_events(place: tuple[RunningKernel, Path]) -> None:
    kernel, root = place
    command = [sys.executable, "-m", "kernel.cli", "stdio", "--data", str(kernel.data_dir)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sent, lines = process.stdin, process.stdout
        guard = threading.Timer(60, process.kill)
        guard.start()

        def send(message: dict[str, Any]) -> None:
            sent.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sent.flush()

        def answer(number: int) -> dict[str, Any]:
            while True:
                message = json.loads(lines.readline())
                if message.get("id") == number:
                    result: dict[str, Any] = message["result"]
                    return result

        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        send({"id": 0, "method": "initialize", "params": about})
        answer(0)
        send({"method": "notifications/initialized"})
        send({"id": 1, "method": "resources/list"})
        assert "linckia://events" in [each["uri"] for each in answer(1)["resources"]]
        start = kernel.call("events_read")["next"]
        for number, uri in enumerate(("linckia://events", f"linckia://events?after={start}"), start=2):
            send({"id": number, "method": "resources/subscribe", "params": {"uri": uri}})
            assert answer(number) == {}
        (root / "subscribed.txt").write_text("x")
        updated: set[str] = set()
        while updated != {"linckia://events", f"linckia://events?after={start}"}:
            message = json.loads(lines.readline())
            assert message["method"] == "notifications/resources/updated"
            updated.add(message["params"]["uri"])

        def is_read() -> bool:
            send({"id": 9, "method": "resources/read", "params": {"uri": f"linckia://events?after={start}"}})
            return "subscribed.txt" in answer(9)["contents"][0]["text"]

        wait_until(is_read)
        guard.cancel()
        sent.close()


def test_command_prints_and_follows_events_across_a_death(place: tuple[RunningKernel, Path]) -> None:
    kernel, root = place
    command = [sys.executable, "-m", "kernel.cli", "events", "--data", str(kernel.data_dir)]
    # Beside others of its kind it would be a part of their line.
    (root / "printed").mkdir()
    (root / "printed" / "printed.txt").write_text("x")
    wait_until(lambda: "printed.txt" in names(read_all(kernel)))
    shown = subprocess.run([*command, "--kind", "file"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert f"file created {root}/printed/printed.txt" in shown.stdout
    with subprocess.Popen(
        [*command, "-n", "1", "--json", "--follow"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        assert process.stdout is not None
        # The last event is seen before anything more happens.
        assert json.loads(process.stdout.readline())["number"]
        kernel.kill("events")
        (root / "followed.txt").write_text("x")
        found = json.loads(process.stdout.readline())
        while found["subject"] != str(root / "followed.txt"):
            found = json.loads(process.stdout.readline())
        guard.cancel()
        process.kill()
    wrong = subprocess.run([*command, "--kind", "zebra"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert wrong.returncode != 0
    assert "kinds" in wrong.stderr
