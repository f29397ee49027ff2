"""`linckia setup`: from a fresh installation to a question answered.

Each step is a command that can also be run alone, so that setup decides only which ones are due. It may be repeated:
what is done already is left as it is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kernel.cli import EXIT_FAILED
from kernel.cli.clients.places import places
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.cli.settings_file import NAME, SettingsFile, edited
from kernel.cli.stdio import SERVE, log_end, real_root
from kernel.configure.config import ConfigError
from proto.control.address import log_dir
from proto.control.client import CallFailed, Client, KernelGone, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, confirmed, say
from proto.host import models
from proto.ops.kernel import KernelStatusParams

START_S = 120.0
"""Limit for the start of the kernel: the first one may have to compile modules."""

ASKED_LIMIT = 3
"""Notes that are shown as the answer."""

MODEL = "all-MiniLM-L6-v2"

MAX_LOOKED_AT = 2000
"""Entries of folders that are looked at for a question."""


class Setup:
    """One run of the command."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._data_dir: Path = arguments.data_dir
        self._yes: bool = arguments.yes
        self._dry: bool = arguments.dry_run
        self._failed: list[str] = []
        if not (self._yes or self._dry or sys.stdin.isatty()):
            raise Usage("setup asks questions, but stdin is no terminal; name the folders and add --yes, or --dry-run")
        self._folders = self._chosen(arguments.paths)
        self._question: str = arguments.question or ""

    def run(self) -> int:
        """Do all steps. Returns 1 if one failed; the others are done."""
        self._heading("Folders")
        self._write_roots()
        self._heading("Embedding model")
        self._get_model()
        self._heading("MCP servers that your clients have")
        self._command("mcp", "import", *(["--dry-run"] if self._dry else []), wanted="Supervise them?")
        self._heading("Kernel")
        running = self._start()
        self._heading("MCP clients")
        self._enter_clients()
        self._heading("Conversations of your agents")
        if running or self._dry:
            self._command("import-chats", *(["--dry-run"] if self._dry else ["--yes"] if self._yes else []))
        self._show_key()
        if running:
            self._heading("A question")
            self._ask()
        if self._dry:
            say("", "Nothing was changed.")
        elif self._failed:
            complain(f"not done: {', '.join(self._failed)}. The rest is done; `linckia setup` may be repeated")
        else:
            say(
                "",
                "Next: `linckia status` shows the services and the address of the page, `linckia --help` the commands.",
            )
        return EXIT_FAILED if self._failed else 0

    def _heading(self, text: str) -> None:
        say("", (text, "bold"), flush=True)

    def _command(self, *words: str, wanted: str = "") -> bool:
        """Run a command of Linckia, after a question if there is one; return whether it succeeded."""
        from kernel.cli.__main__ import main

        if wanted and not self._agreed(wanted):
            return True
        code = main(["--data", str(self._data_dir), *words])
        if code:
            self._failed.append(f"linckia {' '.join(words)}")
        return not code

    def _agreed(self, question: str) -> bool:
        return self._dry or self._yes or confirmed(f"{question} [y/N]")

    # Folders

    def _chosen(self, given: Sequence[str]) -> list[str]:
        """Return the folders that are named, set already, or told when asked. Raises Usage."""
        if given:
            return [real_root(path) for path in given]
        try:
            roots = [str(root) for root in load(Flags(data_dir=str(self._data_dir)), os.environ).roots]
        except ConfigError as error:
            raise Usage(str(error)) from None
        if roots:
            return roots
        if self._yes or self._dry:
            raise Usage("name the folders that agents may work in, such as `linckia setup ~/notes --yes`")
        say(
            "Which folders may agents read and change? Names with spaces between them, such as ~/notes ~/code:",
            flush=True,
        )
        if not (named := sys.stdin.readline().split()):
            raise Usage("no folder was named; nothing was changed")
        return [real_root(path) for path in named]

    def _write_roots(self) -> None:
        say(*(f"  {folder}" for folder in self._folders))
        if self._dry:
            say(f"would be the roots, in {self._data_dir / NAME}")
            # What the later commands show depends on them.
            os.environ["LINCKIA_ROOTS"] = os.pathsep.join(self._folders)
            return
        settings = SettingsFile(self._data_dir)
        settings.write(edited(settings.text, ("roots",), self._folders))
        try:
            in_force = [str(root) for root in load(Flags(data_dir=str(self._data_dir)), os.environ).roots]
        except ConfigError as error:
            settings.undo()
            raise Failed(f"nothing was changed: {error}") from None
        if set(in_force) != set(self._folders):
            settings.undo()
            raise Failed(f"nothing was changed: LINCKIA_ROOTS sets other roots ({', '.join(in_force)})")
        say(f"are the roots now ({settings.path})")

    # The model and the kernel

    def _get_model(self) -> None:
        if found := next(filter(models.installed, models.AUTOMATIC), ""):
            say(f"{found} is there")
        elif self._dry:
            say(f"{MODEL} would be downloaded")
        elif not self._command("models", "get", MODEL):
            say("Search works by words; once the model can be downloaded, repeat `linckia setup`.")

    def _start(self) -> bool:
        """Start the kernel, unless it runs; return whether it is ready."""
        try:
            with Client(self._data_dir) as client:
                status = client.call(KernelStatusParams())
        except NoKernel:
            if self._dry:
                say(f"would be started in the background, with its log in {log_dir(self._data_dir) / 'kernel.log'}")
                return False
            return self._started()
        missing = set(self._folders) - set(status.roots)
        if not missing:
            say(f"runs already (process {status.pid})")
            return True
        complain(f"the running kernel has other roots; `linckia stop` and `linckia setup` give it {', '.join(missing)}")
        self._failed.append("roots of the running kernel")
        return not self._dry

    def _started(self) -> bool:
        log_dir(self._data_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        with (log_dir(self._data_dir) / "kernel.log").open("ab") as log:
            # In a session of its own, so that it goes on when the terminal is closed.
            started = subprocess.Popen(
                [*SERVE, "--data", str(self._data_dir)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        give_up_at = time.monotonic() + START_S
        while started.poll() is None and time.monotonic() < give_up_at:
            try:
                with Client(self._data_dir) as client:
                    client.call(KernelStatusParams())
            except (NoKernel, KernelGone, CallFailed):
                time.sleep(0.1)
            else:
                say(
                    f"started (process {started.pid}); `linckia stop` ends it",
                    "`linckia service install` has systemd start it at each login",
                )
                return True
        complain(f"the kernel did not start{log_end(self._data_dir)}")
        self._failed.append("linckia serve")
        return False

    def _show_key(self) -> None:
        """Print the key of encrypted backups, which the user must keep elsewhere."""
        try:
            backup = load(Flags(data_dir=str(self._data_dir)), os.environ).backup
        except ConfigError:
            return
        if backup is not None and backup.is_encrypted and not self._dry:
            self._heading("Key of the backups")
            self._command("backup", "--key")

    # Clients, and a question

    def _enter_clients(self) -> None:
        found = {place.client: place.path for place in places(Path.home(), Path.cwd(), os.environ)
                 if not place.is_project and (place.path.exists() or _has_own_folder(place.path))}  # fmt: skip
        if not found:
            say("none of the known ones is installed; `linckia install-client --help` lists them")
        for client, path in found.items():
            say(f"{client}: {path}", flush=True)
            self._command("install-client", client, *(["--dry-run"] if self._dry else ["--yes"] if self._yes else []))

    def _ask(self) -> None:
        """Wait until all notes can be searched, and answer a question."""
        title = _title(self._folders)
        if not title and not self._question:
            say("There are no notes (.md) in these folders yet.")
            return
        if not self._command("ingest"):
            return
        question = self._question
        if not question and not self._yes:
            say(f"What do you want to find in your notes? (Enter: {title})", flush=True)
            question = sys.stdin.readline().strip()
        question = question or title
        say(f"linckia search {question}")
        self._command("search", "--limit", str(ASKED_LIMIT), "--", *question.split())


def setup(arguments: argparse.Namespace) -> int:
    """Set up. Returns 1 if a step failed. Raises Usage, Failed, ControlError, OSError."""
    return Setup(arguments).run()


def _has_own_folder(path: Path) -> bool:
    """Whether the client's own folder exists, not just one that all programs have."""
    return path.parent not in (Path.home(), Path.home() / ".config") and path.parent.is_dir()


def _title(folders: Sequence[str]) -> str:
    """Return the name of a note, as words; "" if there is none among the first entries."""
    looked_at = 0
    for folder in folders:
        for _, below, files in os.walk(folder):
            below[:] = [name for name in below if not name.startswith(".")]
            for name in files:
                looked_at += 1
                if name.endswith(".md") and not name.startswith("."):
                    return " ".join(name.removesuffix(".md").replace("-", " ").replace("_", " ").split())
            if looked_at > MAX_LOOKED_AT:
                return ""
    return ""
