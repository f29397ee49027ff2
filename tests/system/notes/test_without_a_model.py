"""Notes on a machine without an embedding model: found by words at once, and nothing waits for vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from proto.control.client import CallFailed
from proto.errors import Kind
from tests.system.cli.clients import linckia
from tests.system.running import running


@pytest.mark.timeout(120)
def test_ingest_ends_and_says_in_one_line_how_to_add_meaning(tmp_path: Path) -> None:
    root = tmp_path / "notes"
    root.mkdir()
    (root / "deploys.md").write_text("# Deploys\n\nWe release on Tuesdays, never before a holiday.\n")
    (root / "bread.md").write_text("# Bread\n\nFlour, water, salt, and a night in the fridge, covered.\n")
    services = ["knowledge", "retrieve", "graph", "watch", "embed"]
    missing = {"LINCKIA_SERVICES__EMBED__MODEL": str(tmp_path / "model")}
    with running(tmp_path / "data", [root], services=services, environment=missing) as kernel:
        done = linckia(kernel.data_dir, "ingest")
        assert done.returncode == 0
        assert "2 notes indexed" in done.stdout
        assert f"found by words only: the model folder {tmp_path / 'model'} does not exist" in done.stderr

        (found,) = kernel.call("notes_search", {"query": "release on Tuesdays"})["results"]
        assert (found["path"], found["source"]) == ("deploys.md", "lexical")
        with pytest.raises(CallFailed, match="needs a model") as failed:
            kernel.call("notes_gaps", {})
        assert failed.value.failure["kind"] == Kind.UNAVAILABLE
