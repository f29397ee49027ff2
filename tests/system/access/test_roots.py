"""A root that is deleted and created again under a real kernel: the services, confined to the old folder, get the new
one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from proto.control.client import CallFailed
from tests.system.running import RunningKernel, running, wait_until

SERVICES = ("knowledge", "retrieve", "watch", "files", "yaml", "documents")


def reads(kernel: RunningKernel, id_: str) -> bool:
    try:
        return bool(kernel.call("notes_read", {"id": id_})["text"])
    except CallFailed:
        return False


def test_a_recreated_root_is_read_by_services_that_knew_the_old_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "old.md").write_text("# Old\n\nzebra\n")
    with running(tmp_path / "data", [root], services=SERVICES) as kernel:
        kernel.call("knowledge_ingest", {"vectors": False}, timeout_s=30)
        assert reads(kernel, "old")
        kernel.call("kernel_stop", {"service": "documents"})
        before = {name: kernel.service(name)["generation"] for name in kernel.services()}
        shutil.rmtree(root)
        root.mkdir()
        (root / "new.md").write_text("# New\n\nokapi\n")
        wait_until(lambda: reads(kernel, "new"), said=lambda: kernel.log("kernel"))
        wait_until(lambda: kernel.service("watch")["generation"] != before["watch"], said=lambda: kernel.log("kernel"))
        kernel.wait_ready("knowledge", "watch", "files", "yaml")
        assert kernel.service("retrieve")["generation"] == before["retrieve"]
        assert kernel.service("documents")["state"] == "stopped"
