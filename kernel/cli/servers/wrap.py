"""`linckia wrap -- COMMAND ARG…`: what an MCP client starts instead of a server, so that the server is supervised.

The server is mounted in a kernel for wrapped servers only, whose data directory is beside the usual one. This process
then behaves like `linckia stdio --surface NAME`. The same command with the same folder, options and environment is the
same server, whichever client wraps it. As in `stdio`, a client is waiting, so that slow modules are imported only for a
new server.

The server's environment, which may hold secrets of other programs, is in a file only while somebody wraps the server:
the last session removes it, and the next one writes it again. If a session is killed, any later one removes it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kernel.cli.stdio import join, stdio
from proto.control.client import CallFailed, Client, ControlError, NoKernel
from proto.control.commands import Usage

VOLATILE: Final = frozenset({
    "_", "PWD", "OLDPWD", "SHLVL", "COLUMNS", "LINES", "TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION",
    "TERM_SESSION_ID", "WINDOWID", "GPG_TTY", "TMUX", "TMUX_PANE", "STY", "INVOCATION_ID", "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID", "XDG_SESSION_ID", "MANAGERPID", "CLAUDECODE",
})  # fmt: skip
VOLATILE_PREFIXES: Final = (
    "LINCKIA_", "SSH_", "VSCODE_", "CURSOR_", "CLAUDE_CODE_", "ITERM_", "KITTY_", "WEZTERM_", "ELECTRON_", "CHROME_",
)  # fmt: skip
"""Variables of a terminal, a session or a client. They are not passed on, since clients share the server."""

RUNNERS: Final = (
    "npx",
    "bunx",
    "uvx",
    "uv",
    "pnpm",
    "yarn",
    "npm",
    "bun",
    "deno",
    "node",
    "python",
    "python3",
    "docker",
)
"""Programs that run what their first argument names."""

NO_NAMES: Final = ("run", "exec", "dlx", "tool", "x", "start")

KEPT_S: Final = 30 * 86400.0
"""How long a server, without its environment, stays in the settings after it was last wrapped."""

USED, SEEN, EAGER = "used", "seen", "eager"
"""Endings of empty files: the server is in the settings, was last wrapped when this file was last modified, and is
wrapped now by the processes that have locked it; the kernel knows what it offers; it starts with the kernel."""

ENVIRONMENTS: Final = ("env", "json")
"""Endings of the files with the server's environment."""

TRIES, PAUSE_S = 20, 0.1


def wrap(arguments: argparse.Namespace) -> int:
    """Return when the MCP session has ended. Raises Failed, Usage, ControlError."""
    if not arguments.server:
        raise Usage("name the server: linckia wrap -- COMMAND ARG…")
    data_dir = data_dir_of(arguments)
    environment = passed_on(os.environ)
    name = name_of(arguments, environment)
    with contextlib.ExitStack() as stack:
        with _locked(data_dir):
            _forget_environments(data_dir)
            if not _is_known(data_dir, name):
                _add(data_dir, name, arguments, environment)
            elif not _environments(data_dir, name):
                _store_environment(data_dir, name, arguments, environment)
            _mark_used(data_dir, name)
            in_use = stack.enter_context(_used(data_dir, name))

        def end() -> None:
            for descriptor in in_use:
                os.close(descriptor)
            in_use.clear()
            with contextlib.suppress(OSError), _locked(data_dir, waits=False):
                _forget_environments(data_dir)

        session = argparse.Namespace(
            data_dir=data_dir, paths=[], surface=name, read_only=False, config=None, mcp_files=None, only_mounts=True,
            at_end=end,
        )  # fmt: skip
        stack.callback(end)
        if not _mark(data_dir, name, SEEN).exists():
            # The kernel does not end as long as this connection is open.
            stack.enter_context(_started(data_dir, name, session))
        return _serve(data_dir, name, session)


def _serve(data_dir: Path, name: str, session: argparse.Namespace) -> int:
    for left in reversed(range(TRIES)):
        try:
            return stdio(session)
        except Usage:
            # The kernel read its settings before the server was added. Nothing was read from the client.
            if not left or not _is_known(data_dir, name):
                raise
            _reload(data_dir)
            time.sleep(PAUSE_S)
    raise AssertionError


def _started(data_dir: Path, name: str, session: argparse.Namespace) -> Client:
    """Start a server that has never run here, and return a connection to the kernel.

    Its tools are not known yet, and its clients list them only once. A server that does not start is the
    session's to report. Raises Failed, Usage, ControlError.
    """
    from kernel.cli.servers.testing import offered_by, start_timeout_of
    from proto.ops.kernel import KernelReloadMounts, KernelStatusParams

    client, _ = join(data_dir, [], session, lambda client, timeout_s: client.call(KernelStatusParams()))
    with contextlib.suppress(CallFailed):
        # The kernel may have read its settings before the server was added.
        client.call(KernelReloadMounts())
        if offered_by(client, name, start_timeout_of({})).version:
            _mark(data_dir, name, SEEN).touch(mode=0o600)
    return client


def data_dir_of(arguments: argparse.Namespace) -> Path:
    """Return the data directory for wrapped servers: the one given, or the usual one's name with `-wrap`."""
    usual: Path = arguments.data_dir
    return usual if arguments.data else usual.with_name(f"{usual.name}-wrap")


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the server gets: all but those of the terminal, the session and the client."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name not in VOLATILE and not name.startswith(VOLATILE_PREFIXES) and _is_text(name + value)
    }


def _is_text(text: str) -> bool:
    """Return whether a settings file can hold it: variables may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return the name of the mount: words from the command, and a hash of everything that distinguishes servers."""
    told = {key: getattr(arguments, key) for key in ("server", "env", "env_from", "share", "eager", "pin", "stateful")}
    whole = json.dumps([told, str(_folder(arguments)), dict(environment)], sort_keys=True)
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = (
        re.sub(r"[^a-z0-9]+", "-", (arguments.name or words_of(arguments.server)).lower()).strip("-")[:20].strip("-")
    )
    return f"{words if words[:1].isalpha() else f'mcp-{words}'.rstrip('-')}-{digest}"


def words_of(server: Sequence[str]) -> str:
    """Return what a command runs: the package, module or script, without version and ending."""
    program, *rest = server
    program = Path(program).name
    if re.sub(r"[0-9.]+$", "", program) in RUNNERS:
        named = [word for word in rest if not word.startswith("-") and word not in NO_NAMES]
        program = named[0] if named else program
    last = program.rstrip("/").rpartition("/")[2]
    return re.sub(r"(?<=.)@.*$|\.(py|js|mjs|cjs|ts)$", "", last)


def _folder(arguments: argparse.Namespace) -> Path:
    return Path.cwd() / Path(arguments.cwd or "").expanduser()


@contextlib.contextmanager
def _locked(data_dir: Path, *, waits: bool = True) -> Iterator[None]:
    """Let one process at a time change the settings. Raises OSError, also if another one does and this must not
    wait."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(data_dir / "wrap.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _mark(data_dir: Path, name: str, kind: str) -> Path:
    return data_dir / "mcp" / f"{name}.{kind}"


def _is_known(data_dir: Path, name: str) -> bool:
    # It is written after the settings.
    return _mark(data_dir, name, USED).exists()


def _mark_used(data_dir: Path, name: str) -> None:
    _mark(data_dir, name, USED).touch(mode=0o600)


@contextlib.contextmanager
def _used(data_dir: Path, name: str) -> Iterator[list[int]]:
    """Show other processes that somebody wraps the server, until the descriptor that is yielded is closed."""
    in_use = [os.open(_mark(data_dir, name, USED), os.O_RDONLY | os.O_CLOEXEC)]
    try:
        fcntl.flock(in_use[0], fcntl.LOCK_SH)
        yield in_use
    finally:
        for descriptor in in_use:
            os.close(descriptor)


def _environments(data_dir: Path, name: str) -> list[Path]:
    """Return the files with the environment of a server."""
    return [path for ending in ENVIRONMENTS if (path := _mark(data_dir, name, ending)).exists()]


def _store_environment(data_dir: Path, name: str, arguments: argparse.Namespace, variables: Mapping[str, str]) -> None:
    """Write the files with the environment of a server that is in the settings. Raises OSError."""
    from kernel.cli.servers.secret_files import store_secrets, without_secrets

    given = dict(each.partition("=")[::2] for each in arguments.env or ())
    store_secrets(data_dir, without_secrets(name, {"env": {**variables, **given}})[1])


def _forget_environments(data_dir: Path) -> None:
    """Remove the environments of servers that nobody wraps now. The caller must hold the lock."""
    for mark in (data_dir / "mcp").glob(f"*.{USED}"):
        name = mark.name.removesuffix(f".{USED}")
        if (found := _environments(data_dir, name)) and not _mark(data_dir, name, EAGER).exists() and _is_free(mark):
            for path in found:
                path.unlink(missing_ok=True)


def _is_free(mark: Path) -> bool:
    descriptor = os.open(mark, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _add(data_dir: Path, name: str, arguments: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Add the server to the settings, and forget those that nobody has wrapped for long. Raises Failed, Usage."""
    from kernel.cli.servers.secret_files import store_secrets, without_secrets
    from kernel.cli.servers.tables import change, secret_files, table_of, written
    from kernel.cli.settings_file import REMOVED

    arguments.cwd = str(_folder(arguments))
    table = table_of(arguments)
    table["env"] = {**environment, **table.get("env", {})}
    table, files = without_secrets(name, table)
    old = [] if _is_running(data_dir) else [each for each in written(data_dir) if _is_old(_mark(data_dir, each, USED))]
    store_secrets(data_dir, files)
    if arguments.eager:
        # It also starts with the kernel that somebody else's server needs.
        _mark(data_dir, name, EAGER).touch(mode=0o600)
    change(data_dir, {**{(each,): REMOVED for each in old}, (name,): table})
    for each in old:
        for path in secret_files(data_dir, each):
            path.unlink(missing_ok=True)


def _is_running(data_dir: Path) -> bool:
    try:
        Client(data_dir).close()
    except NoKernel:
        return False
    return True


def _is_old(mark: Path) -> bool:
    try:
        return time.time() - mark.stat().st_mtime > KEPT_S
    except FileNotFoundError:
        return False


def _reload(data_dir: Path) -> None:
    from kernel.cli.servers.tables import reload

    with contextlib.suppress(ControlError):
        reload(data_dir)
