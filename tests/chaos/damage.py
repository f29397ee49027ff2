"""Damages database files: derived ones during the storm, source ones after it.

A damaged source database loses the content of the damaged pages. Everything else must still be served, each failure
must name the file and the remedy, and so must `status` and `doctor`.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path

import trio

from kernel.configure import manifests
from proto.control.client import CallFailed, Client, ControlError
from proto.manifest import Keep
from tests.chaos.record import Record
from tests.chaos.storm import Storm, send
from tests.chaos.system import System
from tests.system.running import REPOSITORY

PAGE = 4096

SOURCES = tuple(
    f"services/{each.manifest.name}/{store.path}"
    for each in manifests.built_in()
    for store in each.manifest.stores
    if store.keep is Keep.SOURCE and store.schema and not store.rebuilt
)
"""Patterns of databases that cannot be derived again. `files` stores its sets in one database with derived data."""

REMEDY = ".recover"

PASSES_S = 20.0
"""Time for derived data to be rebuilt."""


def overwrite(path: Path, chance: random.Random, share: float = 0) -> None:
    """Overwrite one page of a database, or a share of all, but never the first page, which every access needs."""
    pages = path.stat().st_size // PAGE
    if pages < 2:
        return
    count = max(1, int(pages * share))
    with path.open("r+b") as file:
        for page in chance.sample(range(1, pages), min(count, pages - 1)):
            file.seek(page * PAGE)
            file.write(chance.randbytes(PAGE))


def cut(path: Path, chance: random.Random) -> None:
    """Truncate a database."""
    pages = path.stat().st_size // PAGE
    if pages > 1:
        with path.open("r+b") as file:
            file.truncate(chance.randrange(1, pages) * PAGE)


def _is_source(path: Path) -> bool:
    return any(path.match(pattern) for pattern in SOURCES)


async def _derived(do: Callable[[Path, random.Random], None], storm: Storm) -> list[str]:
    """Damage a derived database while its owner is stopped, then kill the owner, so that the next process reads the
    damage."""
    every = sorted((storm.system.data / "services").glob("*/*.db"))
    path = storm.chance.choice([path for path in every if not _is_source(path)])
    owner = path.parent.name
    service = await storm.system.service(owner)
    if service is None or not service["pid"]:
        return []
    send(service["pid"], signal.SIGSTOP)
    do(path, storm.chance)
    send(service["pid"], signal.SIGKILL)
    return [owner]


bad_page = partial(_derived, overwrite)
truncated = partial(_derived, cut)


async def sources(system: System, documents: Mapping[str, str], record: Record, chance: random.Random) -> list[str]:
    """Damage each source store of a system that is about to end, and check what it reports about `documents`."""
    for path in (found for pattern in SOURCES for found in sorted(system.data.glob(pattern))):
        service = await system.service(path.parent.name)
        if service is not None and service["pid"]:
            send(service["pid"], signal.SIGSTOP)
        chance.choice((cut, partial(overwrite, share=0.03)))(path, chance)
        if service is not None and service["pid"]:
            send(service["pid"], signal.SIGKILL)
    return list(await trio.to_thread.run_sync(lambda: list(_looked(system, documents, record))))


def _looked(system: System, documents: Mapping[str, str], record: Record) -> Iterator[str]:
    served = refused = 0
    known = set()
    with Client(system.data) as client:
        for sha, text in documents.items():
            try:
                answer = client.call_named("documents_get", {"hash": sha, "include_content": True}, timeout_s=30)
            except CallFailed as error:
                refused += 1
                _names(record, error, "packs.db", f"document {sha}")
            else:
                served += 1
                if answer["content"] != text:
                    record.wrong.append(f"a damaged database has another text for document {sha}")
        yield f"damaged packs.db: {served} documents served, {refused} refused"
        for name, file in (
            ("transcript_histories", "transcripts.db"),
            ("transcript_stats", "transcripts.db"),
            ("sets_list", "files.db"),
            ("memory_list", "memory.db"),
        ):
            try:
                _call_again(client, name)
            except CallFailed as error:
                _names(record, error, file, name)
                known.add(file.removesuffix(".db"))
                yield f"damaged {file}: {name} refused"
            else:
                yield f"damaged {file}: {name} served"
        known |= {"documents"} if refused else set()
        reported = _reported_damage(client, known)
    for name, said in reported.items():
        if REMEDY not in said:
            record.wrong.append(f"status does not state the remedy for the damage of {name}: {said}")
    if known - reported.keys():
        record.wrong.append(f"status does not report the damage of {sorted(known - reported.keys())}")
    command = [sys.executable, "-P", "-m", "kernel.cli", "doctor", "--json", "--data", str(system.data)]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    missed = [name for name, said in reported.items() if json.dumps(said)[1:-1] not in found.stdout.decode()]
    if missed or (reported and found.returncode != 1):
        record.wrong.append(f"doctor (exit code {found.returncode}) does not report the damage of {missed}")
    yield f"status and doctor report the damage of {sorted(reported)}"


def _reported_damage(client: Client, known: Set[str]) -> dict[str, str]:
    """Return the damage that status reports, by service; services in `known` report theirs with their next pong."""
    until = time.monotonic() + PASSES_S
    while True:
        services = client.call_named("kernel_status", {}, timeout_s=10)["services"]
        reported = {s["name"]: s["info"]["damage"] for s in services if (s.get("info") or {}).get("damage")}
        if known <= reported.keys() or time.monotonic() >= until:
            return reported
        time.sleep(0.2)


def _call_again(client: Client, name: str) -> None:
    """Call until the failure is not a temporary one: `files` is rebuilt while it reports that."""
    until = time.monotonic() + PASSES_S
    while True:
        try:
            client.call_named(name, {}, timeout_s=30)
        except CallFailed as error:
            if not error.failure.get("retry_after_ms") or time.monotonic() >= until:
                raise
            time.sleep(error.failure["retry_after_ms"] / 1000)
        else:
            return


def _names(record: Record, error: ControlError, file: str, what: str) -> None:
    """Check that a failure caused by damage names the file and the remedy."""
    if file not in str(error) or REMEDY not in str(error):
        record.wrong.append(f"{what}, in a damaged database, fails without the file and the remedy: {error}")
