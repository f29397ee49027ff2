"""`linckia migrate retrieve`: moves collections to a PostgreSQL server, or back into files, while they are used."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from proto.control.commands import AddCommand, Group
from proto.control.terminal import Bars, connect, counted, patiently, say
from proto.names import module

PATIENCE_S = 120.0
"""How long a failure may last: the service restarts, the server fails over. Nothing is lost meanwhile."""

MIGRATE_EPILOG = """\
examples:
  linckia migrate retrieve --to postgres
  linckia migrate retrieve --to local --collection own.products
  linckia migrate sources --to postgres

`dsn_env` in [retrieve] names the server. Everything stays usable, and each copy is compared with its original before it
takes its place. `sources` are documents, conversations and memories themselves; [sources] names their server, and no
kernel may run meanwhile. Repeat an interrupted migration to resume it.
"""

GROUP = Group.DATA


def add(command: AddCommand) -> None:
    """Declare `migrate`."""
    migrate = command("migrate", run_migrate, "move data to a PostgreSQL server, or back into files", MIGRATE_EPILOG)
    migrate.add_argument("service", choices=("retrieve", "sources"), help="which data")
    migrate.add_argument("--to", choices=("postgres", "local"), required=True, help="where to store it")
    migrate.add_argument("--collection", metavar="NAME", help="only this one; a client's has own. before its name")


def run_migrate(arguments: argparse.Namespace) -> int:
    """Call `retrieve_migrate` until nothing is left. Interrupted, it resumes at the next time. Raises ControlError."""
    if arguments.service == "sources":
        run: Callable[[argparse.Namespace], int] = importlib.import_module(module("kernel.cli.carry.sources")).run
        return run(arguments)
    from services.retrieve.operations import RetrieveMigrate

    asked = RetrieveMigrate(to=arguments.to, collection=arguments.collection or "")
    moved: list[str] = []
    with connect(arguments) as client, Bars() as show:
        while True:
            answer = patiently(client, asked, show, patience_s=PATIENCE_S)
            moved += answer.moved
            if not answer.left:
                break
    where = "on the server" if arguments.to == "postgres" else "in files"
    if moved:
        say(f"{counted(len(moved), 'collection')} moved, each compared with its original: {', '.join(moved)}")
        say(f'new ones are made {where} with `store = "{arguments.to}"` in [retrieve]')
    else:
        say(f"nothing to move: every collection is {where}")
    return 0
