"""What killing does to notes: 300 are written, edited and searched while each service that has a part in it is killed
20 times at random moments; then all that is stored is compared with the files.

    scripts/bench knowledge_kills [--kills 20] [--notes 300] [--seed 0] [--pause 2] [--victims knowledge,retrieve,…]

With `rerank` among the victims there is a cross-encoder, a small one of random weights, and every search is put in
order by it.

Printed are the searches, those that failed or were degraded, and all that was wrong: nothing should be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from tests.system.note_kills import VICTIMS, audit, torment
from tests.system.running import running
from tests.unit.rerank.tiny import save_cross_encoder

RERANK = "rerank"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--notes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two kills, at most")
    parser.add_argument("--victims", default=",".join((*VICTIMS, RERANK)))
    given = parser.parse_args()
    victims = given.victims.split(",")
    reranks = RERANK in victims
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
        root, model = Path(folder) / "notes", Path(folder) / "model"
        root.mkdir()
        environment = {"LINCKIA_SERVICES__RERANK__MODEL": str(save_cross_encoder(model))} if reranks else {}
        with running(Path(data), [root], environment=environment) as kernel:
            began = time.monotonic()

            async def work() -> list[str]:
                seen = await torment(
                    kernel,
                    root,
                    notes=given.notes,
                    kills=given.kills,
                    seed=given.seed,
                    victims=victims,
                    pause_s=given.pause,
                    reranks=reranks,
                )
                kills = ", ".join(f"{name} {times}" for name, times in sorted(seen.kills.items()))
                print(f"kills: {kills}, in {time.monotonic() - began:.0f} s")
                print(f"searches: {seen.searches}, degraded: {seen.degraded}, failed: {dict(seen.failures)}")
                for reason, times in seen.reasons.most_common():
                    print(f"  {times} times: {reason}")
                problems = await trio.to_thread.run_sync(
                    partial(audit, kernel, given.notes, seen.editions, reranks=reranks)
                )
                return seen.wrong + problems

            wrong = trio.run(work)
    print(f"wrong: {len(wrong)}")
    for each in wrong[:20]:
        print(f"  {each}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
