"""Classifier jobs: durable, on record, and refused for what is no file."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams, OperationError
from proto.validation import validate
from services.files.operations.classifier import ClassifierJobProgress, ListClassifierJobs, RerunClassifier
from tests.unit.files.rig import files_service, index

PATIENCE_S = 20


async def test_classifier_jobs_are_recorded_and_unindexed_files_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.jpg").touch()
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        (root / "later.jpg").touch()
        for path, field in ((root, "sourcePath"), (root / "later.jpg", "sourcePath"), (tmp_path, "sourcePath")):
            with pytest.raises(InvalidParams) as refused:
                await bench.call(RerunClassifier(source_path=str(path)))
            assert refused.value.failure.field == field
        with pytest.raises(InvalidParams, match="there are: metadata, thumbnail, timeline"):
            validate(RerunClassifier, {"sourcePath": f"{root}/a.jpg", "operations": ["poem"]})
        started = await bench.call(RerunClassifier(source_path=f"{root}/a.jpg", operations=["metadata"]))
        assert (started.operations, started.source_path) == (["metadata"], f"{root}/a.jpg")
        with trio.fail_after(PATIENCE_S):
            while True:
                job = await bench.call(ClassifierJobProgress(job_id=str(started.job_id)))
                if job.completed_at is not None:
                    break
                await trio.sleep(0.01)
        assert (job.id, job.operations) == (started.job_id, ["metadata"])
        listing = await bench.call(ListClassifierJobs())
        assert (listing.jobs, listing.total) == ([job], 1)
        assert (await bench.call(ListClassifierJobs(status="running"))).total == 0
        with pytest.raises(OperationError, match="classifier_jobs"):
            await bench.call(ClassifierJobProgress(job_id=99))
