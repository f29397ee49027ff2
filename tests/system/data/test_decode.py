"""Documents that are bombs, on a real kernel: they cost the decoder its life, and no other call anything."""

from __future__ import annotations

import time
from pathlib import Path

from tests.system.data import bombs
from tests.system.running import RunningKernel, polls, running
from tests.unit.documents import formats
from tests.unit.documents.test_texts import pdf

ENVIRONMENT = {"LINCKIA_SERVICES__DECODE__MEMORY_LIMIT_BYTES": str(400 << 20)}
DOCUMENTS_BYTES = 400 << 20


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _generation(kernel: RunningKernel) -> int:
    kernel.wait_ready("decode")
    number: int = kernel.service("decode")["generation"]
    return number


def _extracted(kernel: RunningKernel) -> float:
    """Wait until nothing is left to extract; return the longest time that another call took meanwhile, in seconds."""
    longest = 0.0
    for _ in polls(60):
        began = time.monotonic()
        (match,) = kernel.call("documents_grep", {"pattern": "needle"})["matches"]
        assert match["file"].endswith("plain.txt")
        longest = max(longest, time.monotonic() - began)
        if not kernel.call("documents_status")["extraction_waiting"]:
            return longest
    raise AssertionError(kernel.call("documents_status"))


def test_bombs_among_documents_end_the_decoder_twice_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "bomb.pdf").write_bytes(bombs.pdf_that_unfolds_twice())
    (root / "bomb.xlsx").write_bytes(bombs.office("xl/worksheets/sheet1.xml"))
    (root / "bomb.docx").write_bytes(bombs.office("word/document.xml"))
    (root / "laughs.docx").write_bytes(bombs.office_of_entities())
    for name, (data, _) in formats.KINDS.items():
        (root / name).write_bytes(data)
    (root / "deploy.rb").write_text("def deploy\n  build(1)\nend\n")
    (root / "good.pdf").write_bytes(pdf("The sea star regrows"))
    (root / "plain.txt").write_text("a needle\n")
    services = ["documents", "media", "decode", "files"]
    with running(tmp_path / "data", [root], environment=ENVIRONMENT, services=services) as kernel:
        before = kernel.service("documents")
        decoder = _generation(kernel)
        added = kernel.call("documents_add", {"path": str(root)})
        assert (added["files"], added["failed_count"]) == (7 + len(formats.KINDS), 0)
        _extracted(kernel)
        after = kernel.service("documents")
        assert (after["pid"], after["generation"]) == (before["pid"], before["generation"])
        assert _peak_bytes(after["pid"]) < DOCUMENTS_BYTES
        (match,) = kernel.call("documents_grep", {"pattern": "sea star"})["matches"]
        assert match["file"].endswith("good.pdf")
        # Those that grammars and readers are loaded for, in the confined process.
        for pattern, name in (("Sales of sea", "report.docx"), ("pump", "budget.xlsx"), ("wet & dark", "reef.epub")):
            found = {Path(one["file"]).name for one in kernel.call("documents_grep", {"pattern": pattern})["matches"]}
            assert name in found
        related = kernel.call("documents_get", {"name": "deploy.rb", "graph": True})["related"]
        assert "deploy" in {node["label"] for node in related}
        quarantine = kernel.call("documents_status", {"detailed": True})["quarantine"]
        told = {Path(path).name: why for path, _, why in (one.partition(": ") for one in quarantine)}
        assert set(told) == {"bomb.pdf", "bomb.xlsx", "bomb.docx", "laughs.docx"}
        assert "service decode died (killed by SIGABRT) of it, twice" in told["bomb.pdf"]
        assert "declares entities" in told["laughs.docx"]
        assert "decompresses to more" in told["bomb.xlsx"]
        assert "decompresses to more" in told["bomb.docx"]
        read = kernel.call("documents_get", {"name": "good.pdf", "include_content": True})
        assert (read["content"], read["content_source"]) == ("The sea star regrows", "extracted_text")
        for name, begins in (("good.pdf", "The sea star regrows"), ("report.docx", "# Annual report")):
            text = kernel.call("files_read", {"path": str(root / name)})
            assert (text["text"].split("\n")[0], text["source"]) == (begins, "extracted_text")
        for name in ("bomb.pdf", "bomb.xlsx", "bomb.docx"):
            kept = kernel.call("documents_get", {"name": name, "outputPath": str(root / "kept")})
            assert Path(kept["output_path"]).read_bytes() == (root / name).read_bytes()
        # It is remembered: neither another collection nor another process tries it again.
        deaths = _generation(kernel) - decoder
        assert deaths == 2
        kernel.kill("documents")
        kernel.wait_ready("documents")
        kernel.call("documents_add", {"path": str(root / "bomb.pdf"), "collection": "again"})
        _extracted(kernel)
        assert _generation(kernel) - decoder == deaths
        # A thumbnail of it is another question, answered once as well.
        for _ in range(2):
            found = kernel.call("media_inspect", {"path": str(root / "bomb.pdf")}, timeout_s=60)
            assert "died (killed by SIGABRT) of it, twice" in found["problem"]
            assert _generation(kernel) - decoder == 2 * deaths
