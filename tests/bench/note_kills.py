"""The effect of kills on notes.

300 notes are written, edited and searched while each service involved is killed 20 times at random moments; then all
stored data is compared with the files.

    scripts/bench note_kills [--kills 20] [--notes 300] [--seed 0] [--pause 2] [--victims knowledge,retrieve,…]

With `rerank` among the victims, a small cross-encoder with random weights ranks every search. Printed are the searches,
those that failed or were degraded, and all errors, of which there should be none.

    scripts/bench note_kills --by-clients [--kills 1000] [--seed 0]

Three notes are written and edited, and one with links to it is renamed, through the Python SDK over stdio, while
`knowledge` is killed repeatedly. Printed are the acknowledged calls and the failures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from tests.system.notes import note_kills, note_writing
from tests.system.running import RunningKernel, running
from tests.unit.rerank.tiny import save_cross_encoder

RERANK = "rerank"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by-clients", action="store_true")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--notes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two kills, at most")
    parser.add_argument("--victims", default=",".join((*note_kills.VICTIMS, RERANK)))
    given = parser.parse_args()
    reranks = not given.by_clients and RERANK in given.victims.split(",")
    with tempfile.TemporaryDirectory() as folder:
        root, model = Path(folder) / "notes", Path(folder) / "model"
        root.mkdir()
        environment = {"LINCKIA_SERVICES__RERANK__MODEL": str(save_cross_encoder(model))} if reranks else {}
        services = note_writing.SERVICES if given.by_clients else ()
        with running(Path(folder) / "data", [root], services=services, environment=environment) as kernel:
            work = _written if given.by_clients else _searched
            wrong = trio.run(partial(work, given, kernel, root))
    print(f"wrong: {len(wrong)}")
    for each in wrong[:20]:
        print(f"  {each[:1000]}")
    return 1 if wrong else 0


async def _searched(given: argparse.Namespace, kernel: RunningKernel, root: Path) -> list[str]:
    began, victims = time.monotonic(), given.victims.split(",")
    seen = await note_kills.torment(
        kernel, root, notes=given.notes, kills=given.kills or 20, seed=given.seed, victims=victims,
        pause_s=given.pause, reranks=RERANK in victims,
    )  # fmt: skip
    kills = ", ".join(f"{name} {times}" for name, times in sorted(seen.kills.items()))
    print(f"kills: {kills}, in {time.monotonic() - began:.0f} s")
    print(f"searches: {seen.searches}, degraded: {seen.degraded}, failed: {dict(seen.failures)}")
    for reason, times in seen.reasons.most_common():
        print(f"  {times} times: {reason}")
    audit = partial(note_kills.audit, kernel, given.notes, seen.editions, reranks=RERANK in victims)
    return seen.wrong + await trio.to_thread.run_sync(audit)


async def _written(given: argparse.Namespace, kernel: RunningKernel, root: Path) -> list[str]:
    began = time.monotonic()
    seen = await note_writing.torment(kernel, root, given.kills or 1000, seed=given.seed)
    print(f"{seen.kills} kills in {time.monotonic() - began:.0f} s")
    print(f"{seen.acknowledged} calls acknowledged, {seen.renamed} of them renamings or finished ones")
    for reason, times in seen.failures.most_common():
        print(f"  {times} times: {reason}")
    return seen.wrong + await trio.to_thread.run_sync(note_writing.audit, kernel, root)


if __name__ == "__main__":
    sys.exit(main())
