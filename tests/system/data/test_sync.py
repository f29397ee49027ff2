"""`linckia sync` of two real kernels over HTTP, through the deaths of everything that takes part.

Random conversations and memories are made, corrected and deleted on both sides, while services, kernels and the command
are killed. In the end both export the same, nothing is lost, and nothing that was deleted is back.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import ControlError
from tests.system.access.tokens import HttpClient, create
from tests.system.cli.clients import command
from tests.system.running import REPOSITORY, RunningKernel, free_port, running

SERVICES = ("front", "transcripts", "memory", "retrieve")
ROUNDS, ALL_ROUNDS = 3, 40
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "jade", "koala", "lilac")

Json = dict[str, Any]


class Machine:
    """A kernel on one of two machines, and what should be there in the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.data = folder / name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token_file = folder / f"{name}.token"
        self.closing = ExitStack()
        self.kernel: RunningKernel

    def start(self) -> None:
        options = ("--http", f"127.0.0.1:{self.port}")
        self.closing = ExitStack()
        self.kernel = self.closing.enter_context(running(self.data, options=options, services=SERVICES, token=True))
        if not self.token_file.exists():
            self.token_file.write_text(create(self.kernel, "other", "--sync"))

    def stop(self) -> None:
        self.closing.close()

    def restart(self) -> None:
        os.kill(self.kernel.process.pid, signal.SIGKILL)
        self.kernel.process.wait()
        self.closing.close()
        self.start()

    def call(self, name: str, **params: Any) -> Any:
        """Call an operation until it is answered; all of those used here may be repeated."""
        give_up = time.monotonic() + 60
        while True:
            try:
                return self.kernel.call(name, params)
            except ControlError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)

    def ingest(self, messages: list[Json], session: str) -> str:
        """Post a turn; return the hash of its reply."""
        reply = {"role": "assistant", "content": f"re {messages[-1]['content']}"}
        request = {"model": "m", "messages": messages}
        response = {"model": "m", "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]}
        turn = {"provider": "openai", "request": request, "response": response, "agent_name": session}
        body = base64.b64encode(json.dumps(turn).encode()).decode()
        return str(self.call("transcript_ingest", body=body)["head_hash"])

    def turns(self) -> dict[str, Json]:
        return {one["turn"]["hash"]: one["turn"] for one in self.pages("transcript_export", "turns")}

    def memories(self) -> dict[str, Json]:
        return {one["id"]: one for one in self.pages("memory_export", "memories")}

    def pages(self, name: str, key: str) -> Iterator[Json]:
        after = 0
        while (page := self.call(name, after=after))[key]:
            yield from page[key]
            after = page["next"]

    def compared(self) -> Json:
        """All that both must have alike: every turn with its conversations, every memory with its sayings."""
        turns = {
            name: (turn.get("content", []), turn.get("gone", False), turn.get("parent_hash", ""),
                   sorted(each["name"] for each in turn.get("conversations", [])))
            for name, turn in self.turns().items()
        }  # fmt: skip
        memories = {
            name: (one["text"], one["scope"], one.get("tags"), one.get("expires_ns"),
                   sorted(map(json.dumps, one["said"])))
            for name, one in self.memories().items()
            if one["scope"] != "session"
        }  # fmt: skip
        return {"turns": turns, "memories": memories}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    here, there = Machine(tmp_path, "here"), Machine(tmp_path, "there")
    with contextlib.ExitStack() as stack:
        for each in (here, there):
            stack.callback(each.stop)
            each.start()
        yield here, there


def sync(here: Machine, there: Machine, *options: str) -> Json:
    done = command(here.data, "sync", there.url, "--token-file", str(there.token_file), "--json", *options)
    assert done.returncode == 0, done.stderr + done.stdout
    found: Json = json.loads(done.stdout)
    return found


def test_two_kernels_end_with_the_same_and_a_second_sync_moves_nothing(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    mine = here.ingest([{"role": "user", "content": "only here"}], "a")
    theirs = there.ingest([{"role": "user", "content": "only there"}], "a")
    kept = here.call("memory_add", text="the port is 8080")["id"]
    there.call("memory_add", text="the sky is blue")
    here.call("memory_add", text="of this session", scope="session:x")
    dry = sync(here, there, "--dry-run")
    assert (dry["chats"]["came"], dry["chats"]["went"], dry["memory"]["came"], dry["memory"]["went"]) == (2, 2, 1, 2)
    assert mine not in there.turns()
    first = sync(here, there)
    assert (first["chats"]["came"], first["chats"]["went"]) == (2, 2)
    assert here.compared() == there.compared()
    assert {mine, theirs} <= here.turns().keys()
    second = sync(here, there)
    nothing = {"came": 0, "went": 0, "deleted_here": 0, "deleted_there": 0, "conflicts": 0, "left": 0, "equal": True}
    assert second["chats"].items() >= nothing.items()
    assert second["memory"].items() >= nothing.items()
    # Deletions travel in both directions, and nothing comes back.
    here.call("transcript_delete", hash=theirs)
    there.call("memory_forget", id=kept)
    third = sync(there, here)
    assert (third["chats"]["deleted_here"], third["memory"]["deleted_there"]) == (1, 1)
    assert theirs not in here.turns() | there.turns()
    assert kept not in here.memories() | there.memories()
    assert here.compared() == there.compared()
    # What is said again later stays.
    there.ingest([{"role": "user", "content": "only there"}], "a")
    assert sync(here, there)["chats"]["deleted_there"] == 0
    assert theirs in here.turns()
    assert here.compared() == there.compared()
    for each in machines:
        leak = [path for path in each.data.glob("memory/memory.db*") if b"8080" in path.read_bytes()]
        assert leak == [], "the text of a forgotten memory is in a file"


def test_texts_that_both_sides_corrected_are_kept_side_by_side(machines: tuple[Machine, Machine]) -> None:
    here, there = machines
    one = here.call("memory_add", text="the meeting is on Monday")["id"]
    other = here.call("memory_add", text="the printer is on floor 1")["id"]
    sync(here, there)
    here.call("memory_update", id=one, text="the meeting is on Tuesday")
    there.call("memory_update", id=one, text="the meeting is on Friday")
    there.call("memory_update", id=other, text="the printer is on floor 2")
    answer = sync(here, there)
    assert answer["memory"]["conflicts"] == 1
    assert here.compared() == there.compared()
    texts = {memory["text"]: memory for memory in here.memories().values()}
    assert texts.keys() == {"the meeting is on Tuesday", "the meeting is on Friday", "the printer is on floor 2"}
    tuesday, friday = texts["the meeting is on Tuesday"], texts["the meeting is on Friday"]
    assert tuesday["conflicts_with"] == [friday["id"]]
    assert friday["conflicts_with"] == [tuesday["id"]]
    assert sync(there, here)["memory"]["conflicts"] == 0


def test_a_side_that_was_restored_from_a_backup_gets_everything_again(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    here, there = machines
    gone = there.ingest([{"role": "user", "content": "to be deleted"}], "a")
    sync(here, there)
    there.closing.close()
    shutil.copytree(there.data, tmp_path / "backup")
    there.start()
    here.call("transcript_delete", hash=gone)
    later = there.ingest([{"role": "user", "content": "after the backup"}], "a")
    sync(here, there)
    os.kill(there.kernel.process.pid, signal.SIGKILL)
    there.kernel.process.wait()
    there.closing.close()
    shutil.rmtree(there.data)
    (tmp_path / "backup").rename(there.data)
    there.start()
    assert gone in there.turns()
    sync(here, there)
    assert gone not in there.turns()
    assert later in there.turns()
    assert here.compared() == there.compared()


def test_only_a_token_for_sync_may(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    """Not even Linckia's own token, which may do everything else that clients may; and that token nothing else."""
    here, there = machines
    tokens = {
        "none": "linckia_unknown_token_of_some_length_that_nobody_made",
        "ordinary": create(there.kernel, "ordinary"),
        "narrow": create(there.kernel, "narrow", "--surface", "transcripts"),
        "own": there.kernel.status()["token"],
    }
    for name, token in tokens.items():
        (tmp_path / name).write_text(token)
        done = command(here.data, "sync", there.url, "--token-file", str(tmp_path / name))
        assert done.returncode == 1
        assert "linckia token create NAME --sync" in done.stderr
        for operation in ("transcript_facts", "transcript_join", "memory_facts", "memory_join"):
            answer = HttpClient(there.kernel, token).request("POST", f"/call/{operation}", {})
            assert answer.status == (401 if name == "none" else 403), operation
    for_sync = HttpClient(there.kernel, there.token_file.read_text())
    assert for_sync.request("POST", "/call/memory_facts", {}).status == 200
    for operation in ("memory_list", "chats_list", "transcript_export", "kernel_stop", "memory_export"):
        assert for_sync.request("POST", f"/call/{operation}", {}).status == 403, operation
    assert for_sync.request("POST", "/operator/transcript_export", {}).status == 403


class Broken(http.server.BaseHTTPRequestHandler):
    """A peer that answers wrong, in the way that `kind` names."""

    kind = ""
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        listing, buckets = bool(given.get("buckets")), ["00" * 16] * 256
        answers: dict[str, object] = {
            "no JSON": None,
            "other JSON": [1],
            "other types": {"format": 1, "buckets": 3},
            "few buckets": {"format": 1, "buckets": buckets[:3]},
            "other format": {"format": 2, "buckets": buckets},
            "no progress": {"format": 1, "covered": [], "facts": []} if listing else {"format": 1, "buckets": buckets},
            "other items": {"turns": [{"hash": "ff"}], "prompts": [], "done": 1},
            "wrong content": {"turns": [{**TURN, "hash": "ab" * 32}], "prompts": [], "done": 1},
        }
        if self.kind in ("other items", "wrong content") and not self.path.endswith("_turns"):
            fact = {"digest": "ab" * 16, "kind": "turn", "target": "ab" * 32, "depth": 1}
            listed = {"format": 1, "covered": given.get("buckets"), "facts": [fact]}
            body = json.dumps(listed if listing else {"format": 1, "buckets": ["11" * 16] * 256}).encode()
            if self.path.endswith("_join"):
                body = json.dumps({"added": 0, "deleted": 0, "left": 0}).encode()
        elif self.kind in ("drip", "endless"):
            body = b""
        else:
            body = b"<html>" if self.kind == "no JSON" else json.dumps(answers.get(self.kind)).encode()
        self.send_response(302 if self.kind == "redirect" else 404 if self.kind == "old" else 200)
        self.send_header("location", "http://127.0.0.1:9/elsewhere")
        self.send_header("content-length", str(10**12 if self.kind in ("drip", "endless") else len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)
            while self.kind == "drip":
                self.wfile.write(b" ")
                time.sleep(0.05)
            while self.kind == "endless":
                self.wfile.write(b" " * 2**20)

    def log_message(self, format: str, *args: object) -> None:
        pass


TURN = {"role": "user", "at": 1.0, "content": [{"type": "text", "text": "smuggled", "is_error": False}]}

SAID = {
    "no JSON": "no JSON object",
    "other JSON": "no JSON object",
    "other types": "with something else",
    "few buckets": "no digests",
    "other format": "update the older one",
    "no progress": "no progress",
    "other items": "did not send the turns that were asked for",
    "wrong content": "the hash does not match the content",
    "redirect": "which is not followed",
    "old": "a version without `linckia sync`",
    "drip": "did not answer transcript_facts within 2 s",
    "endless": "more than 67108864 bytes",
}


def test_a_broken_or_hostile_peer_ends_the_sync_with_a_clear_error(tmp_path: Path) -> None:
    here = Machine(tmp_path, "here")
    (tmp_path / "token").write_text("linckia_some_token_that_nobody_checks_here_at_all")
    with contextlib.ExitStack() as stack:
        here.start()
        stack.callback(here.stop)
        here.ingest([{"role": "user", "content": "safe"}], "a")
        before = here.compared()
        for kind, said in SAID.items():
            with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Peer", (Broken,), {"kind": kind})) as server:
                server.daemon_threads = True
                server.block_on_close = False
                threading.Thread(target=server.serve_forever, daemon=True).start()
                url = f"http://127.0.0.1:{server.server_address[1]}"
                options = ("--only", "chats", "--timeout", "2" if kind == "drip" else "30")
                done = command(here.data, "sync", url, "--token-file", str(tmp_path / "token"), *options)
                server.shutdown()
            assert (done.returncode, said in done.stderr) == (1, True), (kind, done.stderr)
        assert here.compared() == before
        done = command(here.data, "sync", "http://10.1.2.3", "--token-file", str(tmp_path / "token"))
        assert done.returncode == 2
        assert "--plain-http" in done.stderr
        done = command(here.data, "sync", f"http://127.0.0.1:{free_port()}", "--token-file", str(tmp_path / "token"))
        assert done.returncode == 1
        assert "cannot be reached" in done.stderr


def test_a_peer_with_an_unknown_certificate_gets_no_token(tmp_path: Path) -> None:
    here, seen = Machine(tmp_path, "here"), []
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
        f" -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    )
    try:
        subprocess.run(made.split(), check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no certificate can be made: {error}")

    class Listening(Broken):
        def do_POST(self) -> None:
            seen.append(self.headers["authorization"])
            super().do_POST()

    (tmp_path / "token").write_text("linckia_some_token_that_nobody_checks_here_at_all")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listening) as server, contextlib.ExitStack() as stack:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        here.start()
        stack.callback(here.stop)
        url = f"https://localhost:{server.server_address[1]}"
        done = command(here.data, "sync", url, "--token-file", str(tmp_path / "token"))
    assert (done.returncode, "CERTIFICATE_VERIFY_FAILED" in done.stderr, seen) == (1, True, []), done.stderr


def test_nothing_is_lost_or_comes_back_through_any_death(
    machines: tuple[Machine, Machine], request: pytest.FixtureRequest
) -> None:
    whole = bool(request.config.option.all)
    chance = random.Random(f"{request.config.option.seed} sync")
    world = World(machines, chance)
    for number in range(ALL_ROUNDS if whole else ROUNDS):
        for each in machines:
            for _ in range(chance.randint(4, 10)):
                world.change(each)
        here, there = machines if number % 2 else machines[::-1]
        for _ in range(chance.randint(2, 4)):
            world.interrupted(here, there)
        sync(here, there)
        assert here.compared() == there.compared(), f"round {number}, seed {request.config.option.seed}"
        world.check()
    again = sync(*machines)
    assert [again[part]["came"] + again[part]["went"] for part in ("chats", "memory")] == [0, 0]


class World:
    """Changes both machines at random, and knows what must be there after a sync."""

    def __init__(self, machines: tuple[Machine, Machine], chance: random.Random) -> None:
        self.machines = machines
        self.chance = chance
        self.talks: list[list[Json]] = []
        self.heads: dict[str, list[Json]] = {}
        self.dead: set[str] = set()
        self.facts: dict[str, str] = {}
        self.forgotten: set[str] = set()
        self.number = 0

    def text(self) -> str:
        self.number += 1
        return f"{' '.join(self.chance.sample(WORDS, 5))} number {self.number}"

    def change(self, machine: Machine) -> None:
        kind = self.chance.choice(("talk", "talk", "go on", "go on", "delete", "say", "say", "correct", "forget"))
        if kind == "talk" or (kind == "go on" and not self.talks):
            self.talks.append([])
            self.go_on(machine, self.talks[-1])
        elif kind == "go on":
            self.go_on(machine, self.chance.choice(self.talks))
        elif kind == "delete" and (found := sorted(self.heads.keys() & machine.turns().keys())):
            hash_ = self.chance.choice(found)
            machine.call("transcript_delete", hash=hash_, descendants=False)
            self.dead.add(hash_)
            # To go on with it would store it again.
            talk = self.heads.pop(hash_)
            self.talks = [each for each in self.talks if each is not talk]
        elif kind == "say":
            text = self.text()
            self.facts[machine.call("memory_add", text=text)["id"]] = text
        elif kind in ("correct", "forget") and (found := sorted(self.facts.keys() & machine.memories().keys())):
            id_ = self.chance.choice(found)
            if kind == "forget":
                machine.call("memory_forget", id=id_)
                self.forgotten.add(id_)
                self.facts.pop(id_)
            else:
                self.facts[id_] = self.text()
                machine.call("memory_update", id=id_, text=self.facts[id_])

    def go_on(self, machine: Machine, talk: list[Json]) -> None:
        talk.append({"role": "user", "content": self.text()})
        hash_ = machine.ingest(talk, "agent")
        talk.append({"role": "assistant", "content": f"re {talk[-1]['content']}"})
        self.heads[hash_] = talk

    def interrupted(self, here: Machine, there: Machine) -> None:
        """Start a sync, and kill something while it runs."""
        arguments = ["sync", there.url, "--token-file", str(there.token_file), "--data", str(here.data)]
        process = subprocess.Popen(
            [sys.executable, "-m", "kernel.cli", *arguments], cwd=REPOSITORY, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        # From before its first request on, which comes after the imports.
        time.sleep(self.chance.uniform(0.2, 0.9))
        machine = self.chance.choice((here, there))
        match self.chance.choice(("command", "transcripts", "memory", "front", "kernel")):
            case "command":
                process.kill()
            case "kernel":
                machine.restart()
            case service:
                with contextlib.suppress(ControlError):
                    machine.kernel.kill(service)
        process.wait(120)

    def check(self) -> None:
        for machine in self.machines:
            turns, memories = machine.turns(), machine.memories()
            lost = [hash_ for hash_ in self.heads if hash_ not in turns or turns[hash_].get("gone")]
            back = [hash_ for hash_ in self.dead if hash_ in turns and not turns[hash_].get("gone")]
            assert (lost, back) == ([], [])
            missing = [id_ for id_, text in self.facts.items() if text not in {m["text"] for m in memories.values()}]
            assert (missing, sorted(self.forgotten & memories.keys())) == ([], [])
