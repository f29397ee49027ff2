"""Classifier jobs: files for which the service `media` creates thumbnails and metadata, one after another.

A job is durable before anyone is notified of it. Jobs that a dead process left unfinished are repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import get_args

import apsw
import msgspec
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.media import MediaInspect
from services.files import paths
from services.files.core import Core, Family, reads
from services.files.operations import classifier as ops
from services.files.query.entries import find_indexed
from services.files.store import schema
from services.files.store.database import steadily
from services.files.store.sql import Row, fetch_all, fetch_one, fetch_value
from services.runtime.handlers import Context, handles
from services.shared import times

CLASSIFIERS: tuple[ops.Classifier, ...] = get_args(ops.Classifier)

KEPT_JOBS = 10_000
"""Number of ended jobs that are kept; older ones are deleted."""


class ClassifierTools(Family):
    """The operations of `services.files.operations.classifier`, and the worker. Methods run on trio's thread only."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._wakeup = trio.Event()

    def wake(self) -> None:
        """Tell the worker that there are jobs."""
        self._wakeup.set()

    async def run(self) -> None:
        """Run until cancelled; remaining jobs are done at the next start."""
        await steadily(self._core.env, "classifying", self._work)

    async def _work(self) -> None:
        database = self._core.database
        await database.write(lambda db: db.execute("UPDATE classifier_job SET status='pending' WHERE status='running'"))
        while True:
            self._wakeup = trio.Event()
            row = await database.write(_take)
            if row is None:
                await self._wakeup.wait()
                continue
            try:
                # Asking creates the results, which are cached by the content's hash.
                problem = (await self._core.env.call(MediaInspect(path=row[1]))).problem
            except LinckiaError as error:
                problem = str(error)
            await database.write(partial(_finish, id_=row[0], error=problem))

    @handles(ops.RerunClassifier)
    async def rerun(self, params: ops.RerunClassifier, ctx: Context) -> ops.ClassifierStarted:
        path = self._core.roots.clean(params.source_path, "sourcePath")
        path = await trio.to_thread.run_sync(self._core.roots.real, path, "sourcePath")

        def change(db: apsw.Connection) -> int:
            _, entry = find_indexed(db, self._core.roots, path, "sourcePath")
            if entry.kind != schema.FILE:
                raise InvalidParams(
                    f"`sourcePath`: {paths.shown(path)} is a {schema.KINDS[entry.kind]}, not a file", field="sourcePath"
                )
            return put(db, path, params.operations)

        def answer(id_: int) -> ops.ClassifierStarted:
            operations = params.operations or [*CLASSIFIERS]
            return ops.ClassifierStarted(job_id=id_, source_path=path, operations=operations, status="pending")

        id_ = await self._core.database.answer(change, answer)
        self.wake()
        return answer(id_)

    @reads(ops.ClassifierJobProgress)
    def progress(self, db: apsw.Connection, params: ops.ClassifierJobProgress) -> ops.ClassifierJob:
        row = fetch_one(db, "SELECT * FROM classifier_job WHERE id = ?", (int(params.job_id),))
        if row is None:
            raise OperationError(f"no classifier job {params.job_id}; classifier_jobs lists them")
        return _job(row)

    @reads(ops.ListClassifierJobs)
    def listing(self, db: apsw.Connection, params: ops.ListClassifierJobs) -> ops.ClassifierJobs:
        where, bindings = ("WHERE status = ?", (params.status,)) if params.status is not None else ("", ())
        query = f"SELECT * FROM classifier_job {where} ORDER BY id DESC LIMIT ?"
        jobs = [_job(row) for row in fetch_all(db, query, (*bindings, params.limit))]
        total: int = fetch_value(db, f"SELECT count(*) FROM classifier_job {where}", bindings)
        return ops.ClassifierJobs(jobs=jobs, total=total)


def put(db: apsw.Connection, path: str, operations: Sequence[ops.Classifier]) -> int:
    """Return the id of a new job, or of a pending one that does the same."""
    wanted = msgspec.json.encode(operations or CLASSIFIERS).decode()
    waiting: int | None = fetch_value(
        db, "SELECT id FROM classifier_job WHERE path = ? AND status = 'pending' AND operations = ?", (path, wanted)
    )
    if waiting is not None:
        return waiting
    db.execute(
        "INSERT INTO classifier_job(path, operations, status, created) VALUES(?,?,'pending',?)",
        (path, wanted, time.time_ns()),
    )
    id_ = db.last_insert_rowid()
    db.execute("DELETE FROM classifier_job WHERE id <= ? AND finished NOT NULL", (id_ - KEPT_JOBS,))
    return id_


def _take(db: apsw.Connection) -> Row | None:
    row = fetch_one(db, "SELECT * FROM classifier_job WHERE status = 'pending' ORDER BY id LIMIT 1")
    if row is not None:
        db.execute("UPDATE classifier_job SET status='running', started=? WHERE id=?", (time.time_ns(), row[0]))
    return row


def _finish(db: apsw.Connection, id_: int, error: str | None) -> None:
    status = "completed" if error is None else "failed"
    db.execute(
        "UPDATE classifier_job SET status=?, finished=?, error=? WHERE id=?", (status, time.time_ns(), error, id_)
    )


def _job(row: Row) -> ops.ClassifierJob:
    id_, path, operations, status, created, started, finished, error = row
    return ops.ClassifierJob(
        id=id_,
        source_path=path,
        operations=msgspec.json.decode(operations, type=list[ops.Classifier]),
        status=status,
        progress=100 if status == "completed" else 0,
        created_at=times.rfc3339(created),
        started_at=times.rfc3339_or_none(started),
        completed_at=times.rfc3339_or_none(finished),
        error=error,
    )
