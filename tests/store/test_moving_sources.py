"""`linckia migrate sources`: whole copies, compared, and repeatable after an interruption."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from services.runtime.sources import moving
from services.runtime.sources.moving import Cannot, move
from tests.postgres import PostgresServer
from tests.store.kernels import Pair
from tests.store.pages import NAME, TABLES, held
from tests.system.running import REPOSITORY, running


def made(path: Path) -> Path:
    """A database as a service leaves it when it is killed: part of it is in the log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = (
        "import apsw, os, sys; db = apsw.Connection(sys.argv[1]); db.pragma('journal_mode', 'wal');"
        " db.execute(sys.argv[2] + 'INSERT INTO done VALUES(41); UPDATE filler SET of=41').fetchall(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, path, TABLES], check=True)
    assert path.with_name(path.name + "-wal").stat().st_size
    return path


def content(path: Path) -> Sequence[object]:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        return db.execute("SELECT * FROM filler UNION ALL SELECT number, 0, '' FROM done ORDER BY 1").fetchall()


def test_there_and_back(tmp_path: Path, server: PostgresServer, schema: str) -> None:
    path = made(tmp_path / "memory.db")
    before = content(path)
    assert "41 rows in 2 tables" in move(path, NAME, server.dsn, schema, to_server=True)
    assert [each.name for each in tmp_path.iterdir()] == ["memory.db.before-postgres"]
    assert move(path, NAME, server.dsn, schema, to_server=True) == ""
    assert "41 rows" in move(path, NAME, server.dsn, schema, to_server=False)
    assert content(path) == before
    assert move(path, NAME, server.dsn, schema, to_server=False) == ""


@pytest.mark.parametrize("to_server", [True, False])
@pytest.mark.parametrize("at", ["_send", "_digest_of", "_verified", "_counts", "_forget", "sync_folder"])
def test_an_interrupted_move_is_repeated(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, at: str, to_server: bool
) -> None:
    path = made(tmp_path / "memory.db")
    before = content(path)
    if not to_server:
        move(path, NAME, server.dsn, schema, to_server=True)
    done = getattr(moving, at)

    def interrupted(*arguments: object) -> None:
        done(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(moving, at, interrupted)
        move(path, NAME, server.dsn, schema, to_server=to_server)
    move(path, NAME, server.dsn, schema, to_server=to_server)
    assert path.exists() != to_server
    move(path, NAME, server.dsn, schema, to_server=False)
    assert content(path) == before


def test_data_on_both_sides_are_left_alone(tmp_path: Path, server: PostgresServer, schema: str) -> None:
    path = made(tmp_path / "memory.db")
    move(path, NAME, server.dsn, schema, to_server=True)
    other = made(tmp_path / "memory.db")
    with contextlib.closing(apsw.Connection(str(other))) as db:
        db.execute("INSERT INTO done VALUES(77)").fetchall()
    for to_server in (True, False):
        with pytest.raises(Cannot, match="other data"):
            move(path, NAME, server.dsn, schema, to_server=to_server)
    path.unlink()
    with held(server, schema, "somebody"), pytest.raises(Cannot, match="in use by machine somebody"):
        move(path, NAME, server.dsn, schema, to_server=False)


def test_the_command_moves_what_a_kernel_stored(tmp_path: Path, server: PostgresServer, schema: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    settings = folder / "linckia.toml"
    settings.write_text(f'[sources]\nschema = "{schema}"\n')
    environment = {"DATABASE_URL": server.dsn}
    with running(folder, services=("memory",)) as kernel:
        kernel.call("memory_add", {"text": "The sky is blue"})

    def migrate(to: str) -> str:
        command = [sys.executable, "-m", "kernel.cli", "migrate", "sources", "--to", to, "--data", str(folder)]
        run = subprocess.run(
            command, cwd=REPOSITORY, env={"PATH": "", **environment}, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    said = migrate("postgres")
    assert "memory/memory.db" in said
    assert "compared" in said
    pair = Pair(tmp_path, server, schema, ("memory",))
    settings.write_text(f'[sources]\nstore = "postgres"\nschema = "{schema}"\nmachine = "a"\n')
    try:
        kernel = pair.start("a")
        kernel.wait_ready()
        assert kernel.call("memory_list")["memories"][0]["text"] == "The sky is blue"
        kernel.call("memory_add", {"text": "Grass is green"})
    finally:
        pair.close()
    migrate("local")
    settings.write_text("")
    with running(folder, services=("memory",)) as kernel:
        assert kernel.call("memory_list")["total"] == 2
