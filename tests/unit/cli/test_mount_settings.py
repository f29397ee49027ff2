"""The tables `[mcp.NAME]`: merged over the layers, with real paths, and every mistake named with its file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure import manifests
from kernel.configure.config import Config, ConfigError


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    return data_dir


def load_in(
    data_dir: Path, text: str, environment: dict[str, str] | None = None, config_file: str | None = None
) -> Config:
    (data_dir / "linckia.toml").write_text(text)
    return load(Flags(config_file=config_file), {"LINCKIA_DATA": str(data_dir), **(environment or {})})


def test_a_mount_gets_its_keys_from_every_layer(data_dir: Path, tmp_path: Path) -> None:
    named = tmp_path / "other.toml"
    named.write_text('[mcp.github]\nargs = ["b"]\n')
    text = '[mcp.github]\ncommand = "npx"\nargs = ["a"]\ntimeout = 5\n'
    config = load_in(data_dir, text, {"LINCKIA_MCP__GITHUB__TIMEOUT": "7.5"}, config_file=str(named))
    assert config.mounts == {"github": {"command": "npx", "args": ["b"], "timeout": 7.5}}


def test_the_environment_writes_dashes_in_names_as_underscores(data_dir: Path) -> None:
    config = load_in(data_dir, '[mcp.my-docs]\nurl = "http://localhost/mcp"\n', {"LINCKIA_MCP__MY_DOCS__PIN": "true"})
    assert config.mounts == {"my-docs": {"url": "http://localhost/mcp", "pin": True}}


def test_a_client_of_ones_own_is_for_servers_where_a_person_logs_in(data_dir: Path) -> None:
    text = """
    mcp_client_id = "https://example.org/linckia.json"
    [mcp]
    a = {url = "https://a.example", oauth = {}}
    b = {url = "https://b.example", oauth = {client_id = "b"}}
    c = {url = "https://c.example", oauth = {flow = "client_credentials", client_id = "c"}}
    d = {url = "https://d.example"}
    """
    found = load_in(data_dir, text).mounts
    assert found["a"]["oauth"] == {"client_id": "https://example.org/linckia.json"}
    assert [found[name]["oauth"]["client_id"] for name in "bc"] == ["b", "c"]
    assert "oauth" not in found["d"]
    with pytest.raises(ConfigError, match="mcp_client_id: expected the address of a document"):
        load_in(data_dir, 'mcp_client_id = "https://example.org"')


def test_disabled_mounts_are_left_out(data_dir: Path) -> None:
    assert load_in(data_dir, '[mcp.docs]\ncommand = "x"\nenabled = false\n').mounts == {}


def test_relative_paths_start_from_the_folder_of_the_settings_file(data_dir: Path) -> None:
    text = """
    [mcp.own]
    command = "./server"
    cwd = "work"
    roots = ["work", "~/notes"]
    env_from = ["TOKEN", "own.env"]
    [mcp.docs]
    url = "https://example.org/mcp"
    headers_from = {Authorization = "secrets/docs", X = "DOCS_TOKEN"}
    oauth = {flow = "client_credentials", client_secret_from = "secrets/client"}
    """
    config = load_in(data_dir, text)
    own, docs = config.mounts["own"], config.mounts["docs"]
    assert own == {
        "command": str(data_dir / "server"),
        "cwd": str(data_dir / "work"),
        "roots": [str(data_dir / "work"), str(Path("~/notes").expanduser())],
        "env_from": ["TOKEN", str(data_dir / "own.env")],
    }
    assert docs["headers_from"] == {"Authorization": str(data_dir / "secrets/docs"), "X": "DOCS_TOKEN"}
    assert docs["oauth"]["client_secret_from"] == str(data_dir / "secrets/client")


def test_clients_cannot_read_files_with_secrets_of_mounts(data_dir: Path, tmp_path: Path) -> None:
    root = tmp_path / "notes"
    root.mkdir()
    text = f"""
    roots = ["{root}"]
    [mcp.own]
    command = "server"
    env_from = ["{root}/own.env"]
    [mcp.docs]
    url = "https://example.org/mcp"
    headers_from = {{Authorization = "{root}/token"}}
    oauth = {{client_secret_from = "{root}/client"}}
    """
    assert {str(root / name) for name in ("own.env", "token", "client")} <= set(load_in(data_dir, text).denied)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[mcp.github]\ncomand = "npx"', r"linckia\.toml: mcp\.github\.comand is not a setting; did you mean command"),
        ('[mcp.github]\ncommand = "npx"\ntimeout = "5"', r"linckia\.toml: mcp\.github\.timeout: expected `float`"),
        ('[mcp.github]\ncommand = "npx"\nshare = "all"', r"mcp\.github\.share: invalid enum value 'all'"),
        ('[mcp.a]\ncommand = "x"\ntools = {alow = []}', r"mcp\.a\.tools\.alow is not a setting; did you mean allow"),
        ('[mcp.a]\ncommand = "x"\nurl = "http://localhost"', r"linckia\.toml: mcp\.a: set either `command` or `url`"),
        ("[mcp.a]\npin = true", r"linckia\.toml: mcp\.a: set either `command` or `url`"),
        ('[mcp]\ncommand = "x"', r"linckia\.toml: mcp\.command: expected a table, such as \[mcp\.command\]"),
        ('[mcp.core]\ncommand = "x"', r"mcp\.core: Linckia has its own 'core'; .* such as core-mcp"),
        ('[mcp.GitHub]\ncommand = "x"', r"mcp\.GitHub: names of servers are lower case"),
        ('[mcp.a-b]\ncommand = "x"\n[mcp.a_b]\ncommand = "x"', r"mcp\.a_b: there already is a server 'a-b'"),
    ],
)
def test_mistakes_are_named_with_file_and_key(data_dir: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_in(data_dir, text)


def test_messages_do_not_quote_secrets(data_dir: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_in(data_dir, '[mcp.a]\ncommand = "x"\nenv = {TOKEN = 12345678}')
    assert "12345678" not in str(raised.value)


def test_mistakes_in_variables_are_named(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="LINCKIA_MCP__A: write it as LINCKIA_MCP__NAME__KEY"):
        load_in(data_dir, "", {"LINCKIA_MCP__A": "1"})
    with pytest.raises(ConfigError, match=r"the environment: mcp\.a\.timeut is not a setting; did you mean timeout"):
        load_in(data_dir, '[mcp.a]\ncommand = "x"', {"LINCKIA_MCP__A__TIMEUT": "1"})


def test_templates_make_the_manifests_of_mounts() -> None:
    (template,) = [each for each in manifests.templates() if each.template.table == "mcp"]
    made = template.made("my-docs", {"command": "x"})
    assert (made.package, made.manifest.name) == (template.package, "mcp_my_docs")


def test_scopes_may_name_the_surface_of_a_mount(data_dir: Path) -> None:
    text = """
    [mcp.docs]
    command = "x"
    [http]
    token = "0123456789abcdef0123456789abcdef"
    [http.oauth]
    issuer = "https://id.example"
    audience = "https://tools.example"
    [http.oauth.scopes.read]
    surfaces = ["docs"]
    """
    http = load_in(data_dir, text).http
    assert http is not None
    assert http.oauth is not None
    assert http.oauth.scopes["read"].surfaces == ("docs",)
    with pytest.raises(ConfigError, match=r"scopes\.read: there is no surface 'docs'"):
        load_in(data_dir, text.replace("[mcp.docs]", "[mcp.others]"))
