"""Bundles: what is in them is checked before anything is written, and nothing is run before the user has said yes."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import struct
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.__main__ import main
from kernel.cli.servers.installing import bundles, command
from proto.control.commands import Failed
from tests.unit.cli.servers.installing import registry_server
from tests.unit.cli.servers.installing.registry_server import Registry, entry

MANIFEST: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "Notes Server",
    "version": "1.0.0",
    "description": "Notes",
    "author": {"name": "Somebody"},
    "server": {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {
            "command": "node",
            "args": ["${__dirname}/server/index.js", "${user_config.folders}", "--in=${user_config.unset}", "${HOME}"],
            "env": {"KEY": "${user_config.key}", "LEVEL": "${user_config.level}", "UNSET": "${user_config.unset}"},
            "platform_overrides": {"win32": {"command": "node.exe"}},
        },
    },
    "user_config": {
        "folders": {"type": "directory", "title": "Folders", "description": "", "multiple": True, "required": True},
        "key": {"type": "string", "title": "Key", "description": "", "sensitive": True, "required": True},
        "level": {"type": "number", "title": "Level", "description": "", "default": 3, "min": 1, "max": 9},
        "unset": {"type": "string", "title": "Unset", "description": ""},
    },
}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LINCKIA_DATA", str(tmp_path / "data"))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("node", "python3", "uv"):
        (programs / name).write_text(f"#!/bin/sh\necho $0 >> {tmp_path}/started\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def bundle(path: Path, manifest: object = MANIFEST, more: Callable[[zipfile.ZipFile], object] | None = None) -> Path:
    """Write a bundle."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", manifest if isinstance(manifest, str) else json.dumps(manifest))
        archive.writestr("server/index.js", "// the server")
        if more:
            more(archive)
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["mcp", *argv])
    except SystemExit as exit:
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


GIVEN = ("--yes", "--no-test", "--set", "folders=a", "--set", "folders=b", "--set", "key=hush-hush")


def tables(data: Path) -> Any:
    return tomllib.loads((data / "linckia.toml").read_text()).get("mcp", {})


def files(data: Path) -> list[str]:
    return sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file() and path.name != ".lock")


def test_a_bundle_is_unpacked_and_its_variables_are_replaced(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle(tmp_path / "notes.mcpb")
    code, out, err = run(capsys, "install", str(path), *GIVEN)
    assert (code, err, "hush-hush" in out) == (0, "", False)
    folder = data / "mcp" / "bundles" / hashlib.sha256(path.read_bytes()).hexdigest()
    assert tables(data) == {
        "notes-server": {
            "command": str(tmp_path / "bin" / "node"),
            "args": [f"{folder}/server/index.js", str(tmp_path / "a"), str(tmp_path / "b"), str(Path.home())],
            "cwd": str(folder),
            "env": {"LEVEL": "3"},
            "env_from": ["mcp/notes-server.env"],
            "roots": [str(tmp_path / "a"), str(tmp_path / "b")],
            "confine": True,
        }
    }
    assert (folder / "server" / "index.js").read_text() == "// the server"
    assert not (tmp_path / "started").exists()
    # Another server may use the same bundle.
    assert run(capsys, "install", str(path), "--as", "again", *GIVEN)[0] == 0
    assert run(capsys, "remove", "notes-server")[0] == 0
    assert folder.is_dir()
    assert run(capsys, "remove", "again")[0] == 0
    assert files(data) == ["linckia.toml"]


def test_a_program_of_the_bundle_can_be_executed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo("server/program")
        info.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(info, "#!/bin/sh\n")

    server = {
        "type": "binary",
        "entry_point": "server/program",
        "mcp_config": {"command": "server/program", "args": []},
    }
    path = bundle(tmp_path / "x.mcpb", {**MANIFEST, "server": server, "user_config": {}}, add)
    assert run(capsys, "install", str(path), "--yes", "--no-test", "--as", "own")[0] == 0
    program = Path(tables(data)["own"]["command"])
    assert (program.name, stat.S_IMODE(program.stat().st_mode)) == ("program", 0o700)


@pytest.mark.parametrize(("lock", "args"), [
    (False, ["run", "--no-project", "--with=a>=1,<2", "--with=b", "{}/server/index.js"]),
    (True, ["run", "--frozen", "--directory", "{}", "server/index.js"]),
])  # fmt: skip
def test_a_python_project_is_run_by_uv(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lock: bool, args: list[str]
) -> None:
    def add(archive: zipfile.ZipFile) -> None:
        archive.writestr("pyproject.toml", '[project]\ndependencies = ["a>=1,<2", "b"]\n')
        if lock:
            archive.writestr("uv.lock", "")

    manifest = {**MANIFEST, "manifest_version": "0.4", "server": {"type": "uv", "entry_point": "server/index.js"}}
    path = bundle(tmp_path / "x.mcpb", {**manifest, "user_config": {}}, add)
    assert run(capsys, "install", str(path), "--yes", "--no-test", "--as", "own")[0] == 0
    made = tables(data)["own"]
    assert (made["command"], made["args"]) == (str(tmp_path / "bin/uv"), [each.format(made["cwd"]) for each in args])


def _named(name: str) -> Callable[[zipfile.ZipFile], object]:
    return lambda archive: archive.writestr(name, "x")


def _link(archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(info, "/etc")


def _bomb(archive: zipfile.ZipFile) -> None:
    archive.writestr("zeros", b"\0" * (bundles.UNPACKED_BYTES + 1))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (_named("../out"), "would be outside its folder"),
        (_named("/out"), "would be outside its folder"),
        (_named("a/../../out"), "would be outside its folder"),
        (_named("a\\..\\out"), "would be outside its folder"),
        (_named("C:out"), "would be outside its folder"),
        (_named("a\nb"), "would be outside its folder"),
        (_named("a//b"), "would be outside its folder"),
        (_named("server/index.js/deeper"), "is in it twice"),
        (_named("./manifest.json"), "would be outside its folder"),
        (_link, "is a link or a device"),
        (_bomb, "would take more than"),
    ],
)
def test_a_bundle_with_a_bad_file_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    more: Callable[[zipfile.ZipFile], object], said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(bundles, "UNPACKED_BYTES", 1024 * 1024)
    code, out, err = run(capsys, "install", str(bundle(tmp_path / "x.mcpb", more=more)), *GIVEN)
    assert (code, out, said in err, err.count("\n")) == (1, "", True, 1), err
    assert not data.exists()


def test_a_bundle_that_lies_about_its_size_is_not_unpacked(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "UNPACKED_BYTES", 1024 * 1024)
    path = bundle(tmp_path / "x.mcpb", more=_bomb)
    content = path.read_bytes()
    # The size in the directory and in front of the file.
    path.write_bytes(content.replace(struct.pack("<I", 1024 * 1024 + 1), struct.pack("<I", 1000)))
    code, _, err = run(capsys, "install", str(path), *GIVEN)
    assert (code, "is damaged" in err, err.count("\n")) == (1, True, 1), err
    assert files(data) == []


def _server(**members: object) -> dict[str, Any]:
    return {**MANIFEST, "server": {**MANIFEST["server"], **members}}


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("{", "manifest.json: "),
        ("[" * 100_000, "manifest.json: "),
        ({**MANIFEST, "manifest_version": "9"}, "`manifest_version` is '9'; Linckia knows 0.1 to 0.4"),
        ({**MANIFEST, "server": 1}, "$.server"),
        (_server(type="odd"), "$.server.type"),
        (_server(entry_point="other.js"), "`server.entry_point` is 'other.js', which is not in it"),
        (_server(mcp_config={"command": "/bin/sh", "args": []}), "which is not in the bundle"),
        (_server(mcp_config={"command": "${__dirname}/../x"}), "which is not in the bundle"),
        (_server(mcp_config={"command": "ruby"}), "needs ruby, which is not installed"),
        (_server(mcp_config={"command": "node", "args": ["a\u001bb"]}), "control characters"),
        ({**MANIFEST, "compatibility": {"platforms": ["win32"]}}, "runs only on win32"),
        ({**MANIFEST, "user_config": {"a\nb": {"type": "string"}}}, "odd name"),
    ],
)
def test_a_manifest_with_a_mistake_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: object, said: str
) -> None:
    code, out, err = run(capsys, "install", str(bundle(tmp_path / "x.mcpb", manifest)), "--as", "own", *GIVEN)
    assert (code, out, said in err, err.count("\n")) == (1, "", True, 1), err
    assert not data.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--set", "key=k"], "the server needs folders (Folders; a directory)"),
        (["--set", "key=k", "--set", "folders=nowhere"], "folders: there is no folder"),
        (["--set", "key=k", "--set", "key=l", "--set", "folders=a"], "key: only one value is possible"),
        (["--set", "key=k", "--set", "folders=a", "--set", "level=10"], "level: must be 9 or less"),
        (["--set", "key=k", "--set", "folders=a", "--set", "level=x"], "level: must be a number"),
        (["--set", "key=k", "--set", "folders=a", "--use", "npm"], "--use is for servers of a registry"),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    code, _, err = run(capsys, "install", str(bundle(tmp_path / "x.mcpb")), "--yes", *given)
    assert (code, said in err, err.count("\n")) == (2, True, 1), err
    assert not data.exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"<html>" * 100])
def test_what_is_no_bundle_is_said_so(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "x.mcpb").write_bytes(content)
    code, _, err = run(capsys, "install", str(tmp_path / "x.mcpb"), "--yes")
    assert (code, "is no bundle" in err) == (1, True)
    assert "cannot read" in run(capsys, "install", "none.mcpb", "--yes")[2]
    assert not data.exists()


def test_an_interrupted_install_leaves_no_bundle(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = bundle(tmp_path / "x.mcpb")
    # What a killed command left.
    left = data / "mcp" / "bundles" / "0123.new"
    left.mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(command, "change", interrupted)
        assert run(capsys, "install", str(path), *GIVEN)[0] == 130
    assert files(data) == []
    assert not left.exists()
    assert run(capsys, "install", str(path), *GIVEN)[0] == 0


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with registry_server.registry() as server:
        monkeypatch.setenv("LINCKIA_MCP_REGISTRY", server.url)
        yield server


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"fileSha256": "0" * 64}, "is not what `fileSha256` names"),
        ({"fileSha256": ""}, "`fileSha256` of the bundle is missing"),
        ({"identifier": "http://example.org/x.mcpb"}, "no address that starts with https://"),
    ],
)
def test_a_bundle_of_a_registry_is_the_one_that_it_names(
    there: Registry, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str], said: str,
) -> None:  # fmt: skip
    content = bundle(tmp_path / "x.mcpb").read_bytes()
    package = {
        "registryType": "mcpb",
        "identifier": "https://github.com/user/notes/releases/download/v1/notes.mcpb",
        "version": "1.0.0",
        "fileSha256": hashlib.sha256(content).hexdigest(),
        "transport": {"type": "stdio"},
    }
    server = {"name": "io.github.user/notes", "description": "Notes", "version": "1.0.0"}
    there.entries = [entry({**server, "packages": [{**package, **change}]})]
    # The address must be https, and no such server runs here.
    monkeypatch.setattr(command, "downloaded", lambda url, **_: content)
    code, _, err = run(capsys, "install", "io.github.user/notes", *GIVEN)
    assert (code, said in err) == (1 if said else 0, True), err
    assert bool(files(data)) == (not said)


def test_a_file_is_read_as_a_whole_and_at_most_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bundle(tmp_path / "x.mcpb")
    read = bundles.bundle_at(path)
    assert read.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert zipfile.ZipFile(io.BytesIO(read.content)).namelist() == ["manifest.json", "server/index.js"]
    monkeypatch.setattr(bundles, "FILE_BYTES", 100)
    with pytest.raises(Failed, match="is larger than 100 B"):
        bundles.bundle_at(path)
