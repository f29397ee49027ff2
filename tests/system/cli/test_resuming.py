"""`linckia resume` and `export-chat` over a real kernel: files of agents go from one to the next, and to people."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.cli.clients import command as here
from tests.system.cli.clients import linckia
from tests.system.running import RunningKernel, running, wait_until
from tests.unit.transcripts.rig import Json
from tests.unit.transcripts.test_layouts import CLAUDE, claude


class Agents:
    """The folders of the three agents, a project, and a kernel that follows two of them."""

    def __init__(self, kernel: RunningKernel, root: Path) -> None:
        self.kernel = kernel
        self.project = root / "sea"
        self.home = {name: root / f".{name}" for name in ("claude", "codex", "gemini")}

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = linckia(self.kernel.data_dir, *words)
        assert done.returncode == code, done
        return done

    def resume(self, agent: str, *words: str) -> dict[str, Any]:
        folder = ("--folder", str(self.home[agent]))
        done = self.run("resume", *words, "--as", agent, *folder, "--project", str(self.project), "--json")
        return dict(json.loads(done.stdout))

    def listed(self) -> list[Json]:
        return list(self.kernel.call("chats_list", {"limit": 200})["conversations"])

    def turns(self, one: Json) -> list[Json]:
        """The turns of a conversation, as an export has them, but for where they were stored."""
        turns = {each["turn"]["hash"]: each["turn"] for each in self.kernel.call("transcript_export", {})["turns"]}
        path: list[Json] = []
        name = one["hash"]
        while name:
            path.append(turns[name])
            name = path[-1].get("parent_hash", "")
        own = ("hash", "parent_hash", "provider", "agent_name", "conversations", "project")
        return [{key: value for key, value in turn.items() if key not in own} for turn in reversed(path)]


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "sea").mkdir()
    (tmp_path / "session.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in CLAUDE))
    with running(data, services=["transcripts", "retrieve"]) as kernel:
        made = Agents(kernel, tmp_path)
        made.run("import-chats", str(tmp_path / "session.jsonl"))
        yield made


def test_a_conversation_goes_through_all_agents_and_comes_back(agents: Agents, tmp_path: Path) -> None:
    (before,) = agents.listed()
    turns = agents.turns(before)
    paths = []
    for agent in ("codex", "gemini", "claude"):
        told = agents.resume(agent, before["id"])
        paths.append(path := Path(told["path"]))
        assert path.is_relative_to(agents.home[agent])
        assert path.stat().st_mode & 0o777 == 0o600
        assert [each for each in path.parent.iterdir() if each.name.startswith(".")] == []
        assert told["turns"] == len(turns)
        # Another Linckia, which knows nothing but this file, reads the same.
        with running(tmp_path / f"other-{agent}", services=["transcripts"]) as kernel:
            assert linckia(kernel.data_dir, "import-chats", str(path)).returncode == 0
            other = Agents(kernel, tmp_path)
            (one,) = other.listed()
            assert other.turns(one) == turns
            assert one["title"] == before["title"]
    # Here nothing is listed twice.
    agents.run("import-chats", *map(str, paths))
    assert agents.listed() == [before]


def test_the_printed_command_names_the_session_and_the_folder(agents: Agents) -> None:
    for agent, how in {"claude": "claude --resume", "codex": "codex resume", "gemini": "gemini --resume"}.items():
        told = agents.resume(agent)
        variable = {"claude": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME", "gemini": "GEMINI_CLI_HOME"}[agent]
        folder = agents.home[agent] if agent != "gemini" else agents.home[agent].parent
        expected = f"cd {agents.project} && {variable}={folder} {how} {told['session']}"
        assert told["command"] == expected
        # Without --folder, the variable says where the agent's folder is.
        words = ("resume", "--as", agent, "--project", str(agents.project))
        done = linckia(agents.kernel.data_dir, *words, **{variable: str(folder)})
        assert f" to {agents.home[agent]}/" in done.stdout
        assert done.stdout.splitlines()[-1].startswith(f"cd {agents.project} && {how} ")
        assert len(list(agents.home[agent].rglob("*.jsonl"))) == 2


def test_a_dry_run_and_wrong_words_write_nothing(agents: Agents) -> None:
    told = agents.resume("claude", "--dry-run")
    assert (told["written"], told["turns"]) == (False, 6)
    folder = ("--folder", str(agents.home["claude"]))
    project = ("--project", str(agents.project))
    for words, code, said in [
        (["zzzzqqq", *project], 1, "no conversation matches 'zzzzqqq'"),
        (["00000000"], 1, "no conversation matches"),
        (["the", "kubernetes", "quorum", "of", "zebras", *project], 1, "no conversation matches"),
        ([" ", *project], 1, "the query is blank"),
        ([], 1, "folder /home/u/sea does not exist here; name another with --project DIR"),
        (["--project", "/nowhere"], 2, "--project /nowhere: not a folder"),
    ]:
        done = agents.run("resume", *words, "--as", "claude", *folder, code=code)
        assert said in done.stderr, done
    assert not agents.home["claude"].exists()


def test_the_beginning_of_a_turn_names_its_conversation_up_to_there(agents: Agents) -> None:
    (before,) = agents.listed()
    last = agents.turns(before)
    hashes = [each["turn"]["hash"] for each in agents.kernel.call("transcript_export", {})["turns"]]
    folder = ("--folder", str(agents.home["codex"]), "--project", str(agents.project), "--json")
    told = json.loads(agents.run("resume", hashes[1][:12], "--as", "codex", *folder).stdout)
    assert told["turns"] == 2 < len(last)


def test_several_that_match_are_listed_and_nothing_is_written(agents: Agents, tmp_path: Path) -> None:
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(
            json.dumps(claude(f"n{number}", None, "user", f"Paint the fence {number}", sessionId=f"s{number}"))
        )
        agents.run("import-chats", str(path))
    folder = ("--as", "codex", "--folder", str(agents.home["codex"]), "--project", str(agents.project))
    done = agents.run("resume", "paint", "fence", *folder, code=1)
    assert "several conversations match" in done.stderr
    assert ("Paint the fence 0" in done.stdout, "Paint the fence 1" in done.stdout) == (True, True)
    told = json.loads(agents.run("resume", "paint", "fence", *folder, "--json", code=1).stdout)
    names = [one["id"] for one in told["matches"]]
    assert len(names) == 2
    assert not agents.home["codex"].exists()
    for name in names:
        assert agents.resume("codex", name[:12])["conversation"] == name
    # Words of its text find it, too.
    assert agents.resume("codex", "sunflower")["title"] == "Sea stars"


def test_an_agent_that_goes_on_continues_the_old_conversation(agents: Agents) -> None:
    (before,) = agents.listed()
    told = agents.resume("claude")
    path = Path(told["path"])
    last = [record["uuid"] for record in map(json.loads, path.read_text().splitlines()) if "uuid" in record][-1]
    more = [
        claude("x1", last, "user", "And a crab?", sessionId=told["session"]),
        claude("x2", "x1", "assistant", [{"type": "text", "text": "None."}], id="x", sessionId=told["session"]),
    ]
    with path.open("a") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in more)
    agents.run("import-chats", str(path))
    found = {one["id"]: one for one in agents.listed()}
    assert found.pop(before["id"]) == before
    (new,) = found.values()
    assert (new["turns"], new["title"]) == (2, "Sea stars")
    assert agents.turns(new)[:-2] == agents.turns(before)
    # A turn that is named is the last one.
    (first,) = (
        each["hash"]
        for each in agents.kernel.call("transcript_tree", {"hash": before["hash"], "limit": 9})["nodes"]
        if each["preview"].startswith("Let me look.")
    )
    assert agents.resume("gemini", first)["turns"] == 2


def test_a_follower_takes_a_copy_for_what_it_is(tmp_path: Path) -> None:
    data, home = tmp_path / "data", tmp_path / ".codex"
    data.mkdir()
    (home / "sessions").mkdir(parents=True)
    (data / "linckia.toml").write_text('[transcripts]\nfollow = ["codex"]\n')
    (tmp_path / "session.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in CLAUDE))
    environment = {"CODEX_HOME": str(home)}
    with running(data, services=["transcripts", "watch"], environment=environment) as kernel:
        here(data, "import-chats", str(tmp_path / "session.jsonl"))
        found = kernel.call("chats_list")["conversations"]
        done = here(data, "resume", "--as", "codex", "--folder", str(home), "--project", str(tmp_path), "--json")
        path = json.loads(done.stdout)["path"]
        size = Path(path).stat().st_size
        wait_until(lambda: kernel.call("transcript_import_state", {"source": path})["position"] == size)
        assert kernel.call("chats_list")["conversations"] == found


def test_a_conversation_becomes_a_file_for_people(agents: Agents, tmp_path: Path) -> None:
    text = agents.run("export-chat").stdout
    assert text.startswith("# Sea stars\n")
    assert "Tool call Read" in text
    path = tmp_path / "chat.html"
    agents.run("export-chat", "sea", "stars", "--format", "html", "--output", str(path))
    assert path.read_text().startswith("<!DOCTYPE html>")
    path.write_text("mine")
    done = agents.run("export-chat", "--output", str(path), code=1)
    assert ("exists already; --force replaces it" in done.stderr, path.read_text()) == (True, "mine")
    agents.run("export-chat", "--output", str(path), "--force")
    assert path.read_text() == text
    assert "--force needs --output" in agents.run("export-chat", "--force", code=2).stderr
