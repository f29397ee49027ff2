"""Tests, benchmarks and fault injection. The processes that they start find this package as well."""

import os
from pathlib import Path

_REPOSITORY = str(Path(__file__).resolve().parents[1])
_PATHS = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
if _REPOSITORY not in _PATHS:
    os.environ["PYTHONPATH"] = os.pathsep.join([_REPOSITORY, *_PATHS])
