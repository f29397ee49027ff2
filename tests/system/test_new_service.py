"""A service is one folder: a package is served, kept, backed up, restored, exported and imported without more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proto.control.client import CallFailed
from tests.system.cli.clients import command
from tests.system.running import RunningKernel, running

MANIFEST = """
from linckia.proto.manifest import Export, Keep, Manifest, Store

SCHEMA_VERSION = 3

MANIFESTS = (
    Manifest(
        name="sightings",
        ops_modules=("operations",),
        rests=True,
        stores=(Store("sightings.db", Keep.SOURCE, schema=SCHEMA_VERSION), Store("cache", Keep.DERIVED)),
        exports=(
            Export(
                file="sightings.jsonl",
                about="birds, in the order in which they were seen.",
                lists="sightings_export",
                items="sightings",
                first={"after": 0},
                takes="sightings_import",
            ),
        ),
    ),
)
"""

OPERATIONS = '''
from typing import Annotated

import msgspec
from msgspec import Meta

from linckia.proto.operation import OPERATOR, Family, Params, Role

tool = Family("sightings")
operator = Family("sightings", role=Role.INTERNAL, callers=(OPERATOR,))


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A bird."""

    number: int
    bird: str


class Sightings(msgspec.Struct, frozen=True, kw_only=True):
    """Some of them; `next` is the last one's number."""

    sightings: list[Sighting]
    next: int


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """How many were not there before."""

    changed: int


@tool.write("sightings_note", idempotent=False, deadline_s=10)
class SightingsNote(Params[Sighting], frozen=True, kw_only=True):
    """Note a bird."""

    bird: Annotated[str, Meta(description="Its name")]


@operator.read("sightings_export", deadline_s=10)
class SightingsExport(Params[Sightings], frozen=True, kw_only=True):
    """The next ones."""

    after: int = 0


@operator.write("sightings_import", idempotent=True, deadline_s=10)
class SightingsImport(Params[Changed], frozen=True, kw_only=True):
    """Keep sightings as they were."""

    sightings: list[Sighting]
'''

MAIN = '''
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from linckia.services.runtime.database import Database, Kind, Schema
from linckia.services.runtime.handlers import Context, Environment, Handlers
from sightings.manifest import SCHEMA_VERSION
from sightings.operations import Changed, Sighting, Sightings, SightingsExport, SightingsImport, SightingsNote

SCHEMA = Schema(version=SCHEMA_VERSION, tables="CREATE TABLE seen(number INTEGER PRIMARY KEY, bird TEXT NOT NULL);")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.sightings]`."""

    page: int = 100


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    page = env.settings_as(Settings).page
    database = await env.opened(Database, env.data_dir / "sightings.db", SCHEMA, kind=Kind.SOURCE)
    (env.data_dir / "cache").mkdir(exist_ok=True)
    (env.data_dir / "cache" / "warm").write_text("made again")
    handlers = Handlers()

    @handlers.handle(SightingsNote)
    async def note(params: SightingsNote, ctx: Context) -> Sighting:
        insert = "INSERT INTO seen(bird) VALUES(?) RETURNING number"
        number = await database.write(lambda db: db.execute(insert, (params.bird,)).get)
        return Sighting(number=number, bird=params.bird)

    @handlers.handle(SightingsExport)
    async def export(params: SightingsExport, ctx: Context) -> Sightings:
        select = "SELECT number, bird FROM seen WHERE number > ? ORDER BY number LIMIT ?"
        rows = await database.read(lambda db: list(db.execute(select, (params.after, page))))
        found = [Sighting(number=number, bird=bird) for number, bird in rows]
        return Sightings(sightings=found, next=found[-1].number if found else params.after)

    @handlers.handle(SightingsImport)
    async def take(params: SightingsImport, ctx: Context) -> Changed:
        rows = [(each.number, each.bird) for each in params.sightings]

        def change(db):
            before = db.total_changes()
            db.executemany("INSERT OR IGNORE INTO seen VALUES(?, ?)", rows)
            return db.total_changes() - before

        return Changed(changed=await database.write(change))

    yield handlers
'''

BIRDS = ["wren", "eider", "hoopoe", "alpine swift", "siskin"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the package lies, on the path of every process of ours."""
    package = tmp_path / "path" / "sightings"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", "manifest": MANIFEST, "operations": OPERATIONS, "main": MAIN}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package.parent


@contextmanager
def serving(data: Path, *packages: str) -> Iterator[RunningKernel]:
    options = [option for package in packages for option in ("--with", package)]
    with running(data, options=("--no-http", *options), services=["echo"]) as kernel:
        yield kernel


def birds(kernel: RunningKernel) -> list[str]:
    """Read as they are exported: pages of two, as the settings say."""
    found, after = [], 0
    while page := (answer := kernel.call("sightings_export", {"after": after}))["sightings"]:
        assert len(page) <= 2
        found += [each["bird"] for each in page]
        after = answer["next"]
    return found


def linckia(data: Path, *arguments: str | Path, code: int = 0) -> str:
    done = command(data, *map(str, arguments))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.usefixtures("folder")
def test_a_package_with_a_manifest_is_a_whole_service(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "linckia.toml").write_text("[services.sightings]\npage = 2\n")
    with serving(data, "sightings") as kernel:
        assert kernel.status()["packages"] == ["sightings"]
        for bird in BIRDS:
            kernel.call("sightings_note", {"bird": bird})
        kernel.kill("sightings")
        assert birds(kernel) == BIRDS
        made = json.loads(linckia(data, "backup", tmp_path / "to", "--json"))
        assert made["problems"] == []
        assert "sightings: 5 sightings" in linckia(data, "export", tmp_path / "export")
        kernel.call("sightings_note", {"bird": "too late"})

    exported = [json.loads(line) for line in (tmp_path / "export/sightings/sightings.jsonl").read_text().splitlines()]
    assert [each["bird"] for each in exported] == BIRDS
    assert "- `sightings/sightings.jsonl`: birds, in the order" in (tmp_path / "export/README.md").read_text()

    (snapshot,) = json.loads(linckia(data, "backup", "--list", tmp_path / "to", "--json"))
    assert snapshot["schemas"]["services/sightings/sightings.db"] == 3
    linckia(tmp_path / "again", "restore", tmp_path / "to", "--data", tmp_path / "again")
    assert not (tmp_path / "again/services/sightings/cache").exists(), "derived files are in no backup"
    with serving(tmp_path / "again", "sightings") as kernel:
        assert birds(kernel) == BIRDS

    other = tmp_path / "other"
    with serving(other, "sightings") as kernel:
        assert "sightings: 5 new sightings" in linckia(other, "import", tmp_path / "export")
        assert "sightings: 0 new sightings" in linckia(other, "import", tmp_path / "export")
        assert len(kernel.call("sightings_export")["sightings"]) == 5
    with serving(other) as kernel:
        said = linckia(other, "import", tmp_path / "export", code=1)
        assert "no running service 'sightings' can import it" in said
        with pytest.raises(CallFailed, match="unknown operation"):
            kernel.call("sightings_export")


def test_a_package_that_cannot_be_served_is_a_clear_refusal(tmp_path: Path, folder: Path) -> None:
    assert "--with nowhere: its manifest cannot be imported: No module named 'nowhere'" in linckia(
        tmp_path / "data", "serve", "--no-http", "--with", "nowhere", code=2
    )
    (folder / "second").mkdir()
    (folder / "second" / "manifest.py").write_text(MANIFEST.replace('"sightings"', '"yaml"'))
    assert "--with second: there already is a service 'yaml'" in linckia(
        tmp_path / "data", "serve", "--no-http", "--with", "second", code=2
    )
    (folder / "third").mkdir()
    (folder / "third" / "manifest.py").write_text(MANIFEST.replace('"sightings"', '"../Third"'))
    assert "`name` is '../Third'; use lower-case letters" in linckia(
        tmp_path / "data", "serve", "--no-http", "--with", "third", code=2
    )
    assert not (tmp_path / "data" / "kernel.lock").exists()
