"""The peer: one process that reads each file and decodes it with the functions of the service `decode`.

    python -m tests.bench.decode.peer text|picture FILE…

Prints the seconds of wall and of processor time, without those of the imports.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from proto.ops.decode import TIME_LIMIT_S
from services.decode.images import image, pdf
from services.decode.main import TEXT_SHARE
from services.decode.results import Result
from services.decode.text.documents import text_of


def text(path: Path) -> None:
    made = text_of(path.read_bytes(), TIME_LIMIT_S * TEXT_SHARE)
    assert made.text is not None, (path, made.problem)


def picture(path: Path) -> None:
    made = Result()
    with path.open("rb") as file:
        (pdf if path.suffix == ".pdf" else image)(file, made)
    assert len(made.pictures) == 1, (path, made.problem)


def main() -> None:
    work = {"text": text, "picture": picture}[sys.argv[1]]
    paths = [Path(name) for name in sys.argv[2:]]
    work(paths[0])
    wall, processor = time.perf_counter(), time.process_time()
    for path in paths:
        work(path)
    print(time.perf_counter() - wall, time.process_time() - processor)


if __name__ == "__main__":
    main()
