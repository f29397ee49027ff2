"""The environment of the processes that Linckia starts.

Imports nothing slow, since the first front's process is started before the kernel has loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import proto
from proto import names
from proto.wire.launch import HEAPS

MALLOC = {
    # By default glibc maps and unmaps each large message, which makes 1 MB messages 3 to 6 times slower.
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
    # One heap for all threads: free memory at the end of other heaps is never returned, even when asked to.
    HEAPS: "1",
}

PASSED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TZDIR", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "GLIBC_TUNABLES", "VIRTUAL_ENV", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM",
)  # fmt: skip
PASSED_PREFIXES = (
    "LC_", "PYTHON", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ORT_", "CUDA_",
    "NVIDIA_",
)  # fmt: skip
"""Variables of the environment that every child gets: locations, language and time zone, and how libraries use
processors and memory. Settings are not passed, nor keys meant for other programs. Variables for one service only are in
its launch configuration."""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process."""
    base = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    code = str(Path(proto.__file__).parents[1 + names.PACKAGE.count(".")])
    others = [os.path.abspath(path) for path in base.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **base,
        **MALLOC,
        "PYTHONPATH": os.pathsep.join([code, *others]),
        # Output before a SIGKILL, and the stack of a crash, must reach the log.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **extra,
    }


_OF_PROGRAMS = re.compile(
    r"HOME|USER|LOGNAME|SHELL|PATH|LANG|LANGUAGE|LC_\w+|TZ|TZDIR|TERM|TMPDIR|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY"
    r"|XDG_\w+|DBUS_SESSION_BUS_ADDRESS|SSH_AUTH_SOCK|LD_LIBRARY_PATH"
    r"|(https?|all|no|ftp)_proxy|(HTTPS?|ALL|NO|FTP)_PROXY"
    r"|SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO"
    r"|(npm_config|NPM_CONFIG|UV|PIP|PNPM|NVM|VOLTA|FNM|BUN|DENO|PYENV|ASDF|MISE|DOCKER|PLAYWRIGHT)_\w+"
    r"|JAVA_HOME|CARGO_HOME|RUSTUP_HOME|GOPATH|GOROOT|SystemRoot"
)
"""Variables that programs started by services get. Settings must name others, since they may be secrets."""


def of_programs() -> dict[str, str]:
    """Return those variables of this process's environment that programs started by services get."""
    return {name: value for name, value in os.environ.items() if _OF_PROGRAMS.fullmatch(name)}
