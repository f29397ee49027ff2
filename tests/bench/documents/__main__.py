"""The document store compared with restic, borg and ripgrep, on the same files in the same run.

scripts/bench documents versions [FILES] three successive versions of a source tree; the same of /usr/share/doc
scripts/bench documents grep [DOCUMENTS] regular expressions over this many stored documents, against ripgrep
scripts/bench documents export [DOCUMENTS] `linckia export` of this many documents, against tar of the same files
scripts/bench documents large [MIB] one file in and out, with the peak memory of each process scripts/bench documents
manuals [SECONDS] /usr/share/doc or --dir DIR: add, grep, search and memory; waits this long
                                           for the vectors, then until all services rest, and shows the memory
                                               again;
                                           --backend onnx: without torch; --rest SECONDS: services rest sooner;
                                           --tokens N: embed only this many tokens of each passage, so that all have
                                           vectors within minutes, and the memory at rest includes all of them

`versions` needs restic and borg, `grep` needs ripgrep; if one is missing, the package to install is named. Trees are
made of the files of this installation. `--keep DIR` works in DIR and leaves it there, so that the next run need not
store the same files again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import tempfile
import time
from pathlib import Path

from tests.bench.documents.exporting import export
from tests.bench.documents.grepping import grep
from tests.bench.documents.manuals import KernelSettings, manuals
from tests.bench.documents.trees import kernel_alone
from tests.bench.documents.versions import versions
from tests.bench.parts.programs import require
from tests.system.data.test_documents import peaks, write_large


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench documents", description=__doc__)
    parser.add_argument("what", choices=("versions", "grep", "large", "manuals", "export"), nargs="?",
                        default="versions")  # fmt: skip
    parser.add_argument("count", type=int, nargs="?")
    parser.add_argument("--dir", metavar="DIR", type=Path, default=Path("/usr/share/doc"))
    parser.add_argument(
        "--backend", choices=("torch", "onnx"), default="torch", help="backend of the embedder; onnx is an extra"
    )
    parser.add_argument("--rest", metavar="SECONDS", type=float, default=300.0, help="time without a call until a rest")
    parser.add_argument(
        "--tokens", metavar="N", type=int, help="tokens read of each passage; by default as many as the model reads"
    )
    parser.add_argument("--keep", metavar="DIR", type=Path)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        match arguments.what:
            case "versions":
                require("restic", "borg")
                versions(folder, arguments.count or 32_000)
            case "grep":
                require("rg")
                grep(folder, arguments.count or 100_000)
            case "export":
                require("tar")
                export(folder, arguments.count or 100_000)
            case "manuals":
                wait_s = float(arguments.count or 20)
                settings = KernelSettings(arguments.backend, arguments.rest, arguments.tokens)
                manuals(folder, arguments.dir.resolve(), wait_s, settings)
            case _:
                large(folder, arguments.count or 1024)


def large(folder: Path, mib: int) -> None:
    root = folder / "root"
    root.mkdir(exist_ok=True)
    digest = write_large(root / "large.bin", mib * 2**20)
    with kernel_alone(folder / "data", root) as kernel:
        began = time.monotonic()
        added = kernel.call("documents_add", {"path": str(root / "large.bin")}, timeout_s=600)
        stored = time.monotonic()
        got = kernel.call("documents_get", {"hash": digest, "outputPath": str(root / "copy.bin")}, timeout_s=600)
        ended = time.monotonic()
        assert added["hash"] == digest
        with open(got["output_path"], "rb") as copy:
            assert hashlib.file_digest(copy, "sha256").hexdigest() == digest
        print(f"{mib} MiB in {stored - began:.1f} s, out {ended - stored:.1f} s")
        for name, peak in peaks(kernel).items():
            print(f"{name}: {peak / 2**20:.0f} MiB at most")


if __name__ == "__main__":
    main()
