"""Files of MCP clients (`--mcp FILE`): read as their client reads them, and mistakes named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linckia.kernel.client_files import mount_name, plain_json
from linckia.kernel.config import Config, load
from linckia.kernel.settings import ConfigError, Flags

CLAUDE = """{
  // Two servers.
  "mcpServers": {
    "GitHub": {
      "command": "npx", "args": ["-y", "@modelcontextprotocol/server-github", "http://example.org/*,]"],
      "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}", "LEVEL": "${LEVEL:-info}", "RETRIES": 3},
    },
    /* An old one. */
    "docs": {"type": "sse", "url": "https://${HOST}/sse", "headers": {"Authorization": "Bearer ${TOKEN}", "X": "${X}"}},
  },
}"""

VS_CODE = {
    "inputs": [{"id": "key", "type": "promptString"}],
    "servers": {
        "own": {
            "type": "stdio",
            "command": "${workspaceFolder}/server",
            "args": ["${userHome}", "${env:LEVEL}"],
            "envFile": "${workspaceFolder}/.env",
        },
        "web": {"type": "http", "url": "https://example.org/mcp"},
    },
}


def load_with(path: Path, **environment: str) -> Config:
    data_dir = path.parent / "data"
    data_dir.mkdir(exist_ok=True)
    return load(Flags(mcp_files=(str(path),)), {"LINCKIA_DATA": str(data_dir), **environment})


def written(path: Path, content: object) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_servers_of_claude_and_cursor_are_mounted(tmp_path: Path) -> None:
    config = load_with(written(tmp_path / "mcp.json", CLAUDE), HOST="example.org", TOKEN="t0")
    assert config.mounts == {
        "github": {
            "command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-github", "http://example.org/*,]"],
            "env": {"LEVEL": "info", "RETRIES": "3"},
            # The value itself stays where it is.
            "env_from": ["GITHUB_TOKEN"],
            "cwd": str(tmp_path),
        },
        "docs": {
            "url": "https://example.org/sse",
            "transport": "sse",
            "headers": {"Authorization": "Bearer t0"},
            "headers_from": {"X": "X"},
        },
    }
    assert config.warnings == (f"{tmp_path}/mcp.json: GitHub: the server is mounted as 'github'",)


def test_servers_of_vs_code_are_mounted(tmp_path: Path) -> None:
    config = load_with(written(tmp_path / ".vscode" / "mcp.json", VS_CODE), LEVEL="debug", LINCKIA_DATA=str(tmp_path))
    assert config.mounts == {
        "own": {
            "command": str(tmp_path / "server"),
            "args": [str(Path.home()), "debug"],
            "env_from": [str(tmp_path / ".env")],
            "cwd": str(tmp_path),
        },
        "web": {"url": "https://example.org/mcp", "transport": "http"},
    }


def test_clients_cannot_read_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "mcp.json", {"mcpServers": {}})
    assert str(path) in load_with(path).denied


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "mcp.json", {"mcpServers": {"my-own": {"command": "x"}}})
    assert load_with(path, LINCKIA_MCP__MY_OWN__TIMEOUT="5").mounts["my-own"]["timeout"] == 5


def test_disabled_servers_are_not_mounted(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "disabled": True}, "b": {"command": "x", "disabled": False}}
    assert list(load_with(written(tmp_path / "mcp.json", {"mcpServers": servers})).mounts) == ["b"]


def test_servers_of_codex_are_mounted(tmp_path: Path) -> None:
    text = """
    model = "some"
    [mcp_servers.own]
    command = "server"
    cwd = "/srv"
    env_vars = ["TOKEN"]
    startup_timeout_sec = 20
    tool_timeout_sec = 30.5
    disabled_tools = ["drop"]
    [mcp_servers.web]
    url = "https://example.org/mcp"
    bearer_token_env_var = "TOKEN"
    http_headers = {A = "1"}
    env_http_headers = {B = "TOKEN"}
    """
    config = load_with(written(tmp_path / "config.toml", text), TOKEN="t0")
    assert config.mounts == {
        "own": {
            "command": "server",
            "cwd": "/srv",
            "env_from": ["TOKEN"],
            "start_timeout": 20,
            "timeout": 30.5,
            "tools": {"deny": ["drop"]},
        },
        "web": {
            "url": "https://example.org/mcp",
            "headers": {"A": "1", "Authorization": "Bearer t0"},
            "headers_from": {"B": "TOKEN"},
        },
    }


def test_unknown_members_are_reported_and_ignored(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "autoRestart": True, "description": "ours"}}
    config = load_with(written(tmp_path / "mcp.json", {"mcpServers": servers}))
    assert list(config.mounts) == ["a"]
    assert config.warnings == (f"{tmp_path}/mcp.json: a.autoRestart is not known, and ignored",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"mcpServers": {"a": {"command": "x", "args": ["${input:key}"]}}}, r"a\.args: \$\{input:key\} is an input"),
        ({"mcpServers": {"a": {"command": "x", "args": ["-${NONE}"]}}}, r"a\.args: .* variable NONE is not set"),
        ({"mcpServers": {"a": {"command": "x", "args": ["${command:x}"]}}}, r"\$\{command:x\} is not known"),
        ({"mcpServers": {"a": {"command": ["x"]}}}, r"mcp\.json: mcp\.a\.command: expected `str`"),
        ({"mcpServers": {"a": "x"}}, r"mcpServers\.a: expected an object"),
        ({"mcpServers": []}, r"mcpServers: expected an object"),
        ({"other": {}}, r"mcp\.json: it has neither `mcpServers`"),
        ("[]", r"mcp\.json: expected an object"),
        ('{"mcpServers": }', r"mcp\.json is not valid JSON: .* line 1 column"),
        ({"mcpServers": {"a": {"args": []}}}, r"mcp\.json: mcp\.a: set either `command` or `url`"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_with(written(tmp_path / "mcp.json", content))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.json: No such file"):
        load_with(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("github", "github"),
        ("My Server (v2)", "my-server-v2"),
        ("io.github.owner/server", "io-github-owner-server"),
        ("memory", "memory"),
        ("core", "core-mcp"),
        ("7zip", "mcp-7zip"),
        ("本", "mcp"),
        ("x" * 40, "x" * 32),
        ("taken", "taken-mcp"),
    ],
)
def test_names_are_made_valid_and_different(given: str, name: str) -> None:
    assert mount_name(given, ["taken"]) == name


def test_comments_and_commas_in_strings_stay() -> None:
    text = '{"a": "// no", "b": "/* no */ ,}", "c": "\\",]", /* yes, */ "d": [1, // yes\n], }'
    assert json.loads(plain_json(text)) == {"a": "// no", "b": "/* no */ ,}", "c": '",]', "d": [1]}
