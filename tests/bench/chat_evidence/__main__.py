"""How much of the evidence for a question is found in long conversations, among 5 and 10 turns.

    scripts/bench chat_evidence --locomo FOLDER|FILE|ZIP
    scripts/bench chat_evidence --longmemeval [FILE] [--questions N]

LoCoMo: ten conversations of two people over months, with 1,536 questions whose answers are known to stand in certain
turns. Clone https://github.com/snap-research/locomo, and name its folder `data`. LongMemEval: questions of a user about
earlier sessions with an assistant. Without FILE, it is downloaded from the model hub (280 MB).

Each question is asked twice: of all conversations at once, and of its own. Linckia's collection, index, fusion and
model run in this process, without the kernel. Compared are words alone (SQLite's FTS5 with BM25 and the Porter
stemmer), the nearest vectors alone, reciprocal ranks of these two, Linckia's search with each turn ranked by itself,
and Linckia's search of conversations. Printed are the mean share of a question's evidence among the first 10 and 5
turns, how often the first turn is of a session with evidence, and the median time of a search with the vector of the
question. Exits with 1 if Linckia finds less of the evidence than any other in one of the tables.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from tests.bench.chat_evidence.conversations import History, Question, Unreadable, downloaded, locomo, long_mem_eval
from tests.bench.chat_evidence.systems import Search, Systems


class Figures(msgspec.Struct, frozen=True):
    """The figures of one system in one table."""

    ten: float
    five: float
    session: float
    p50_ms: float


def share(question: Question, found: Sequence[str]) -> float:
    """Return the share of the question's evidence that was found."""
    return len(question.evidence.intersection(found)) / len(question.evidence)


async def measured(search: Search, history: History, *, own: bool) -> Figures:
    """Ask all questions.

    Args:
        own: whether each is asked of its own conversation only.
    """
    sessions = {turn.id: turn.session for turn in history.turns}
    tens: list[float] = []
    fives: list[float] = []
    right: list[bool] = []
    times: list[float] = []
    for question in history.questions:
        begun = time.perf_counter()
        found = await search(question.text, question.conversation if own else "")
        times.append(time.perf_counter() - begun)
        tens.append(share(question, found[:10]))
        fives.append(share(question, found[:5]))
        right.append(bool(found) and sessions[found[0]] in question.sessions)
    mean = statistics.fmean
    return Figures(mean(tens), mean(fives), mean(right), statistics.median(times) * 1000)


async def compare(name: str, history: History) -> bool:
    """Print the tables of one set. Returns whether Linckia finds the most."""
    kept = True
    with tempfile.TemporaryDirectory() as folder:
        systems = Systems(Path(folder), history)
        begun = time.perf_counter()
        await systems.fill()
        print(
            f"{name}: {len(history.conversations)} conversations, {len(history.sessions)} sessions, "
            f"{len(systems.turns)} turns, {len(history.questions)} questions; stored and embedded in "
            f"{time.perf_counter() - begun:.0f} s with {systems.embedder.model.model.files.name}"
        )
        for own, title in ((False, "all conversations at once"), (True, "the question's own conversation")):
            print(f"\n{title:36} among 10   among 5   first of the session   p50")
            figures: list[Figures] = []
            for system, search in systems.all.items():
                got = await measured(search, history, own=own)
                figures.append(got)
                print(
                    f"{system:36} {got.ten:8.4f}  {got.five:8.4f}  {got.session:21.4f}  {got.p50_ms:5.1f} ms",
                    flush=True,
                )
            kept = kept and figures[-1].ten >= max(each.ten for each in figures)
        systems.close()
    print(f"\n{'pass' if kept else 'FAIL'}: Linckia finds at least as much among 10 as any other")
    return kept


async def run(options: argparse.Namespace) -> int:
    """Measure each requested set. Returns the exit status."""
    histories: dict[str, History] = {}
    if options.locomo:
        histories["LoCoMo"] = locomo(options.locomo)
    if options.longmemeval is not None:
        path = Path(options.longmemeval) if options.longmemeval else downloaded()
        histories["LongMemEval"] = long_mem_eval(path, options.questions)
    return 0 if all([await compare(name, history) for name, history in histories.items()]) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--locomo", type=Path, metavar="PATH", help="LoCoMo: a folder, a ZIP file, or locomo10.json")
    parser.add_argument("--longmemeval", nargs="?", const="", metavar="FILE", help="LongMemEval; default: from the hub")
    parser.add_argument("--questions", type=int, help="only the first questions of LongMemEval")
    wanted = parser.parse_args()
    if wanted.locomo is None and wanted.longmemeval is None:
        parser.error("name a set: --locomo or --longmemeval")
    if wanted.questions is not None and wanted.questions < 1:
        parser.error("--questions: at least 1")
    try:
        sys.exit(trio.run(run, wanted))
    except Unreadable as error:
        sys.exit(f"chat_evidence: {error}")
