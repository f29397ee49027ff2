"""Files of MCP clients (`--mcp FILE`): read as their client reads them, and mistakes named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernel.cli.servers.client_files import mount_name, plain_json
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure.config import Config, ConfigError

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
            "headers_from": {"Authorization": "Bearer ${TOKEN}", "X": "X"},
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
            "headers": {"A": "1"},
            "headers_from": {"B": "TOKEN", "Authorization": "Bearer ${TOKEN}"},
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
        ({"mcpServers": []}, r"mcpServers: expected an object"),
        ({"other": {}}, r"mcp\.json: it has neither `mcpServers`"),
        ("[]", r"mcp\.json: expected an object"),
        ('{"mcpServers": }', r"mcp\.json is not valid JSON: .* line 1 column"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_with(written(tmp_path / "mcp.json", content))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("x", r"mcpServers\.bad: expected an object"),
        (None, r"mcpServers\.bad: expected an object"),
        ({"args": []}, r"bad: it has neither `command` nor `url`"),
        ({"command": ""}, r"bad: it has neither `command` nor `url`"),
        ({"command": "x", "url": "https://example.org"}, r"bad: it has both `command` and `url`"),
        ({"command": ["x"]}, r"bad\.command: expected `str \| null`, got `array`"),
        ({"command": "x", "args": "-y x"}, r"bad\.args: expected `array \| null`, got `str`"),
        ({"command": "x", "args": ["-y", ["x"]]}, r"bad\.args\[1\]: expected `int \| float \| str`, got `array`"),
        ({"command": "x", "env": ["A=1"]}, r"bad\.env: expected `object \| null`, got `array`"),
        ({"command": "x", "env": {"A": {"b": 1}}}, r"bad\.env\[\.\.\.\]: expected .*, got `object`"),
        ({"command": "x", "cwd": 1}, r"bad\.cwd: expected `str \| null`"),
        ({"command": "x", "envFile": [".env"]}, r"bad\.envFile: expected `str \| null`"),
        ({"command": "x", "type": "websocket"}, r"bad\.type: 'websocket' is not known; it must be stdio, http or sse"),
        ({"command": "x", "type": "http"}, r"bad\.type: it is 'http', which needs `url`"),
        ({"url": "https://example.org", "type": "stdio"}, r"bad\.type: it is 'stdio', which needs `command`"),
        ({"url": "example.org"}, r"bad\.url: expected an address"),
        ({"url": "https://example.org", "headers": "A: 1"}, r"bad\.headers: expected `object \| null`"),
        (
            {"url": "https://example.org", "bearer_token_env_var": "a b"},
            r"bad\.bearer_token_env_var: expected the name",
        ),
        (
            {"url": "https://example.org", "env_http_headers": {"A": "./x"}},
            r"bad\.env_http_headers\.A: expected the name",
        ),
        ({"command": "x", "env_vars": ["/etc/passwd"]}, r"bad\.env_vars: expected the name of a variable"),
        ({"command": "x", "args": ["${input:key}"]}, r"bad\.args: \$\{input:key\} is an input"),
        ({"command": "x", "args": ["-${NONE}"]}, r"bad\.args: .* variable NONE is not set"),
        ({"command": "x", "args": ["${command:x}"]}, r"\$\{command:x\} is not known"),
        (
            {"url": "https://example.org", "headers": {"A": "${input:key}"}},
            r"bad\.headers\.A: \$\{input:key\} is an input",
        ),
    ],
)
def test_an_entry_with_a_mistake_is_named_and_the_others_are_mounted(
    tmp_path: Path, entry: object, message: str
) -> None:
    listed = {"first": {"command": "x"}, "bad": entry, "last": {"url": "https://example.org/mcp"}}
    config = load_with(written(tmp_path / "mcp.json", {"mcpServers": listed}))
    assert list(config.mounts) == ["first", "last"]
    (warning,) = config.warnings
    assert re.search(rf"mcp\.json: .*{message}", warning)
    assert warning.endswith("; the server is left out")


def test_a_duplicate_name_is_reported(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}, "a": {"command": "z"}}}'
    config = load_with(written(tmp_path / "mcp.json", text))
    assert {name: table["command"] for name, table in config.mounts.items()} == {"a": "z", "b": "y"}
    assert config.warnings == (f"{tmp_path}/mcp.json: mcpServers.a is there more than once; the last one counts",)


def test_settings_of_other_clients_are_carried_over(tmp_path: Path) -> None:
    listed = {
        "gemini": {"httpUrl": "https://example.org/mcp", "includeTools": ["a"], "excludeTools": ["b"]},
        "zed": {"command": {"path": "x", "args": ["y"], "env": {"A": "1"}}},
        "copilot": {"type": "local", "command": "x", "env": {"A": True, "B": None, "C": 2}},
        "windows": {"command": "cmd", "args": ["/c", "npx", "-y", "x"]},
        "file": {"command": "x", "envFile": "production"},
    }
    config = load_with(written(tmp_path / "mcp.json", {"mcpServers": listed}))
    assert config.mounts == {
        "gemini": {"url": "https://example.org/mcp", "transport": "http", "tools": {"allow": ["a"], "deny": ["b"]}},
        "zed": {"command": "x", "args": ["y"], "env": {"A": "1"}, "cwd": str(tmp_path)},
        "copilot": {"command": "x", "env": {"A": "true", "C": "2"}, "cwd": str(tmp_path)},
        "windows": {"command": "npx", "args": ["-y", "x"], "cwd": str(tmp_path)},
        "file": {"command": "x", "env_from": [str(tmp_path / "production")], "cwd": str(tmp_path)},
    }
    assert config.warnings == (f"{tmp_path}/mcp.json: windows: `cmd /c` is left out: it belongs to Windows",)


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ("Bearer ${TOKEN}", "Bearer ${TOKEN}"),
        ("Bearer ${env:TOKEN}", "Bearer ${TOKEN}"),
        ("${env:USER_ID}:${TOKEN}", "${USER_ID}:${TOKEN}"),
        ("${env:TOKEN}", "TOKEN"),
    ],
)
def test_a_header_with_variables_stays_a_reference(tmp_path: Path, value: str, source: str) -> None:
    listed = {"a": {"url": "https://example.org/mcp", "headers": {"Authorization": value}}}
    config = load_with(written(tmp_path / "mcp.json", {"servers": listed}))
    # They need not be set until the server starts.
    assert config.mounts["a"] == {"url": "https://example.org/mcp", "headers_from": {"Authorization": source}}


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
