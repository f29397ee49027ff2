"""How many of sixty requests an agent solves with the tools of a server, by what the server says of them.

Requests are those of a person with notes, code, YAML files, documents, chats and memories. A scripted agent ranks the
tools that it sees by words (BM25) or by vectors (the packaged model), or takes those that the server's own search finds
(`search`). It fills in the arguments by the names of parameters, calls at most three tools, and knows no server. The
peers are the reference servers for files, memory and git, on the tasks that one call of theirs solves. With
`--model-url`, a language model chooses and calls instead.

    scripts/bench agents [--server NAME …] [--show] [--model-url URL --model NAME]

The key for the model is in LINCKIA_BENCH_KEY. Peers: python -m tests.acceptance.install_servers filesystem memory git
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from proto.ops.embed import TextKind
from services.embed.main import load as load_model
from services.embed.serving import EmbedSettings
from services.embed.weights import PACKAGED
from tests.acceptance.install_servers import script
from tests.bench.agents import tasks as tasks_of
from tests.bench.agents import tree
from tests.bench.agents.chooser import Agent, Answer, Client, Request, by_search, by_vectors, by_words
from tests.bench.agents.model import ModelAgent
from tests.bench.agents.servers import PEERS, SURFACES, McpClient, Server, linckia, peer, surface
from tests.bench.agents.tasks import Task

KEY = "LINCKIA_BENCH_KEY"


class Solver(Protocol):
    """An agent of either kind."""

    def solve(self, request: Request, solved: Callable[[Answer], bool]) -> bool:
        """Solve a request; return whether it did."""


Make = Callable[[Client], Solver]


class Use(NamedTuple):
    """What the tasks took on one server."""

    solved: int
    tasks: int
    calls: int
    list_tokens: int
    answer_tokens: int
    failed: Sequence[str]


@contextlib.contextmanager
def running(name: str, folder: Path, root: Path) -> Iterator[Server]:
    """A server that knows the files in `root`, which are made."""
    root.mkdir(parents=True)
    tree.make(root)
    if name in PEERS:
        yield peer(name, folder, root)
        return
    with linckia(folder / "data", root, tasks_of.load(root)) as kernel:
        tree.restore(root)
        yield surface(kernel, name)


def measure(server: Server, root: Path, tasks: Sequence[Task], make: Make) -> Use:
    """Let an agent try the tasks one after the other, each with the files as they are at the beginning."""
    client = McpClient(server.command)
    agent = make(client)
    failed = []
    for task in tasks:

        def is_solved(answer: Answer, task: Task = task) -> bool:
            return task.is_solved(root, answer, server.stored)

        if not agent.solve(task.asked(), is_solved):
            failed.append(task.request)
        if tree.restore(root):
            server.settle()
    client.close()
    return Use(
        len(tasks) - len(failed), len(tasks), client.calls, client.list_tokens, client.answer_tokens, failed
    )  # fmt: skip


def encoder(folder: Path) -> Callable[[Sequence[str]], Any]:
    """Return what makes vectors with the packaged model."""
    model = load_model(EmbedSettings(model=PACKAGED[1]), "cpu", folder)
    return lambda texts: model.encoder.compute(model.tokenizer.encode(list(texts), TextKind.PASSAGE).ids)


def report(name: str, chooser: str, use: Use, *, show: bool) -> None:
    mean, answers = use.calls / use.tasks, use.answer_tokens / use.tasks
    solved = f"{use.solved} of {use.tasks}"
    print(f"| {name} | {chooser} | {solved} | {mean:.1f} | {use.list_tokens:,} | {answers:,.0f} |", flush=True)
    for request in use.failed if show else ():
        print(f"    {request}")


def agents(arguments: argparse.Namespace, folder: Path) -> Mapping[str, Make]:
    if arguments.model_url:
        key = os.environ.get(KEY, "")
        return {arguments.model: lambda client: ModelAgent(client, arguments.model_url, arguments.model, key)}
    ranker = by_vectors(encoder(folder))
    return {
        "words": lambda client: Agent(client, by_words),
        "vectors": lambda client: Agent(client, ranker),
        "search": lambda client: Agent(client, by_search),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench agents", description=__doc__.splitlines()[0])
    parser.add_argument("--server", nargs="+", choices=(*SURFACES, *PEERS), default=(*SURFACES, *PEERS))
    parser.add_argument("--show", action="store_true", help="print the requests that were not solved")
    parser.add_argument("--model-url", help="endpoint of a language model, up to /chat/completions")
    parser.add_argument("--model", default="", help="its name")
    arguments = parser.parse_args()
    if bool(arguments.model_url) != bool(arguments.model):
        parser.error("--model-url and --model are given together or not at all")
    began = time.monotonic()
    print("| server | chooser | solved | calls a task | tokens of the list | tokens of answers a task |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        for chooser, make in agents(arguments, Path(made)).items():
            for name in arguments.server:
                if name in PEERS and chooser == "search":
                    continue
                if name in PEERS and not script(name, f"mcp-server-{name}").exists():
                    print(f"{name}: not installed (python -m tests.acceptance.install_servers {name})")
                    continue
                folder = Path(made) / f"{name}-{chooser.replace('/', '-')}"
                root = folder / "root"
                with running(name, folder, root) as server:
                    able = [task for task in tasks_of.load(root).task if name not in PEERS or name in task.peers]
                    report(name, chooser, measure(server, root, able, make), show=arguments.show)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
