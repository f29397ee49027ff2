"""The tasks of `scripts/bench agents` are solved by the calls that they name, and by nothing less."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.embed.weights import PACKAGED
from tests.acceptance.install_servers import script
from tests.bench.agents import tasks, tree
from tests.bench.agents.chooser import Answer
from tests.bench.agents.servers import PEERS, McpClient, answer_of, linckia, peer, settled, text_of


@pytest.mark.slow
def test_each_task_is_solved_by_its_calls(tmp_path: Path) -> None:
    pytest.importorskip(PACKAGED[0], reason="the package with the model's weights is not installed")
    root = tmp_path / "root"
    root.mkdir()
    tree.make(root)
    given = tasks.load(root)
    wrong = {}
    with linckia(tmp_path / "data", root, given) as kernel:
        for task in given.task:
            assert not task.is_solved(root, Answer("", False), lambda call: text_of(kernel, call)), task.request
            answer = tasks.follow(task, lambda name, arguments: answer_of(kernel, name, arguments))
            if not task.is_solved(root, answer, lambda call: text_of(kernel, call)):
                wrong[task.request] = answer
            if tree.restore(root):
                settled(kernel)
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_tasks_that_another_server_can_do_are_solved_by_its_call(name: str, tmp_path: Path) -> None:
    if not script(name, f"mcp-server-{name}").exists():
        pytest.skip("not installed (python -m tests.acceptance.install_servers)")
    root = tmp_path / "root"
    root.mkdir()
    tree.make(root)
    client = McpClient((server := peer(name, tmp_path, root)).command)
    able = [task for task in tasks.load(root).task if name in task.peers]
    wrong = {}
    for task in able:
        tool, arguments = task.peers[name]
        answer = client.call(tool, tasks.filled(arguments, task.facts, []))
        if not task.is_solved(root, answer, server.stored):
            wrong[task.request] = answer
        tree.restore(root)
    client.close()
    assert able
    assert not wrong
