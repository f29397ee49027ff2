"""Settings: each layer overrides the one before, and every mistake is reported with its place and the correct form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kernel
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure.config import Config, ConfigError
from proto import backup


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    return data_dir


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "notes"
    root.mkdir()
    return root


def write(data_dir: Path, text: str) -> None:
    (data_dir / "linckia.toml").write_text(text)


def load_in(data_dir: Path, environment: dict[str, str] | None = None, flags: Flags | None = None) -> Config:
    return load(flags or Flags(), {"LINCKIA_DATA": str(data_dir), **(environment or {})})


def test_without_any_setting_http_listens_on_the_loopback_only(data_dir: Path) -> None:
    config = load_in(data_dir)
    assert config.http is not None
    assert (config.http.host, config.http.port, config.http.token) == ("127.0.0.1", None, None)
    assert config.roots == ()
    assert config.data_dir == data_dir


def test_a_later_layer_wins_and_leaves_the_rest_alone(data_dir: Path) -> None:
    write(data_dir, 'log_level = "debug"\n[http]\nport = 4000\nhost = "127.0.0.2"\n')
    config = load_in(data_dir, {"LINCKIA_HTTP": ":5000"}, Flags(log_level="error"))
    assert config.http is not None
    assert (config.http.host, config.http.port) == ("127.0.0.2", 5000)
    assert config.log_level == "error"


def test_a_named_file_overrides_the_one_in_the_data_directory(data_dir: Path, tmp_path: Path) -> None:
    write(data_dir, "[http]\nport = 4000\n")
    named = tmp_path / "other.toml"
    named.write_text("[http]\nport = 4001\n")
    config = load_in(data_dir, flags=Flags(config_file=str(named)))
    assert config.http is not None
    assert config.http.port == 4001


def test_roots_are_real_paths_counted_once(data_dir: Path, root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    assert load_in(data_dir, flags=Flags(roots=(str(link), str(root)))).roots == (root,)


def test_relative_roots_of_a_file_start_from_its_folder(data_dir: Path, root: Path) -> None:
    write(data_dir, 'roots = ["../notes"]\n')
    assert load_in(data_dir).roots == (root,)


def test_roots_of_the_environment_are_separated_as_in_path(data_dir: Path, root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert load_in(data_dir, {"LINCKIA_ROOTS": os.pathsep.join((str(root), str(other)))}).roots == (root, other)


def test_a_service_gets_its_own_table_from_every_layer(data_dir: Path) -> None:
    write(data_dir, '[services.embed]\nmodel = "a"\nbatch = 8\n')
    config = load_in(data_dir, {"LINCKIA_SERVICES__EMBED__BATCH": "16", "LINCKIA_SERVICES__EMBED__DEVICE": "cpu"})
    assert config.services == {"embed": {"model": "a", "batch": 16, "device": "cpu"}}


def test_backups_go_to_a_folder_that_no_service_reaches(data_dir: Path) -> None:
    (data_dir / "linckia.toml").write_text('[backup]\nto = "../kept"\nevery = "6h"\n')
    config = load_in(data_dir)
    assert config.backup is not None
    assert (config.backup.to, config.backup.every_s, config.backup.keep) == (str(data_dir.parent / "kept"), 21600, 14)
    assert config.backup.to in config.denied


def test_backups_go_to_another_machine(data_dir: Path) -> None:
    write(data_dir, '[backup]\nto = "sftp://me@host:2200/kept"\nappend_only = true\npassphrase_file = "../phrase"\n')
    backup.note(data_dir, backup.Outcome(to="s3://bucket/earlier", at=1.0, succeeded=1.0))
    config = load_in(data_dir, {"LINCKIA_BACKUP_PASSPHRASE": "is not a setting"})
    assert config.backup is not None
    assert (config.backup.to, config.backup.is_encrypted) == ("sftp://me@host:2200/kept", True)
    assert str(data_dir.parent / "phrase") in config.denied
    assert not any("kept" in each or "earlier" in each for each in config.denied)


def test_a_password_in_an_address_is_not_repeated(data_dir: Path) -> None:
    write(data_dir, '[backup]\nto = "sftp://me:hidden@host/b"')
    with pytest.raises(ConfigError) as failure:
        load_in(data_dir)
    assert "hidden" not in str(failure.value)


def test_folders_that_hold_backups_are_below_no_root(data_dir: Path, tmp_path: Path) -> None:
    root = tmp_path / "served"
    root.mkdir()
    made, failed = (backup.Outcome(to=str(root / name), at=1.0, succeeded=at) for name, at in (("b", 2.0), ("c", None)))
    for outcome in (made, failed):
        backup.note(data_dir, outcome)
    denied = load_in(data_dir, {"LINCKIA_ROOTS": str(root)}).denied
    assert str(root / "b") in denied
    assert str(root / "c") not in denied
    (root / "b").mkdir()
    with pytest.raises(ConfigError, match="holds its backups"):
        load_in(data_dir, {"LINCKIA_ROOTS": str(root / "b")})


def test_no_client_writes_where_services_load_models_from(data_dir: Path, tmp_path: Path) -> None:
    own = tmp_path / "home" / "weights"
    own.mkdir(parents=True)
    write(data_dir, f'[services.embed]\nmodel = "{own}"\n')
    environment = {"LINCKIA_ROOTS": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "home" / "cache")}
    config = load_in(data_dir, environment)
    assert {str(own), str(tmp_path / "home" / "cache" / "hub")} <= set(config.denied)
    # Unless somebody serves that very folder.
    config = load_in(data_dir, environment | {"LINCKIA_ROOTS": str(own)})
    assert (config.roots, str(own) in config.denied) == ((own,), False)


def test_http_can_be_switched_off(data_dir: Path) -> None:
    assert load_in(data_dir, flags=Flags(http="off")).http is None


def test_the_token_is_read_from_its_file(data_dir: Path) -> None:
    (data_dir / "token").write_text("0123456789abcdef\n")
    write(data_dir, '[http]\nhost = "0.0.0.0"\ntoken_file = "token"\n')
    config = load_in(data_dir)
    assert config.http is not None
    assert config.http.token == "0123456789abcdef"


def test_the_token_may_be_off(data_dir: Path) -> None:
    write(data_dir, '[http]\ntoken = "0123456789abcdef"\n')
    config = load_in(data_dir, {"LINCKIA_TOKEN": "off"})
    assert config.http is not None
    assert config.http.token == "off"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_the_loopback_needs_no_token(data_dir: Path, host: str) -> None:
    config = load_in(data_dir, flags=Flags(http=f"{host}:1"))
    assert config.http is not None
    assert config.http.is_loopback


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('rots = ["."]', ("rots", "roots")),
        ("[http]\nprot = 1", ("http.prot", "port")),
        ('[http]\nport = "3000"', ("http.port", "int")),
        ("[http]\nport = 70000", ("http.port", "65535")),
        ('log_level = "loud"', ("log_level", "debug, info, warning or error")),
        ('[http]\ntoken = "short"', ("http.token", "16")),
        ('[http]\ntoken = "0123456789abcdef"\ntoken_file = "x"', ("http.token", "http.token_file")),
        ('[http]\ntoken_file = "nowhere"', ("http.token_file", "nowhere")),
        ('roots = ["nowhere"]', ("nowhere", "does not exist")),
        ('roots = ["linckia.toml"]', ("linckia.toml", "is a file")),
        ('roots = [{path = ".", mode = "append"}]', ("roots", "append")),
        ('roots = [{paths = "."}]', ("roots", "path")),
        ('[backup]\nevery = "1d"', ("backup", "to")),
        ('[backup]\nto = "../b"\nevery = "daily"', ("backup.every", "6h")),
        ('[backup]\nto = "../b"\nkeep = 0', ("backup.keep", "1")),
        ('[backup]\nto = "../b"\nkep = 3', ("backup", "unknown field `kep`")),
        ('[backup]\nto = "b"', ("backup.to", "outside the data directory")),
        ('[backup]\nto = "ftp://host/b"', ("backup.to", "sftp://")),
        ('[backup]\nto = "sftp://me:hidden@host/b"', ("backup.to", "SSH key")),
        ('[backup]\nto = "../b"\nappend_only = true', ("backup.append_only", "encrypt")),
        ('[backup]\nto = "../b"\ncontinuous = true', ("backup.continuous", "encrypt")),
        ('[backup]\nto = "s3://b"\ncontinuous = true\nappend_only = true', ("backup.continuous", "append_only")),
        ('roots = ["."]', ("data", "belongs to Linckia itself", "another folder")),
        ('deny = [""]', ("deny", "neither a path nor a pattern")),
        ('deny = ["a[z-a]"]', ("deny",)),
        ('[http]\nhost = "0.0.0.0"', ("0.0.0.0", "LINCKIA_TOKEN")),
        ('[http]\nhost = "0.0.0.0"\ntoken = "off"', ("0.0.0.0", "LINCKIA_TOKEN")),
        ("[http", ("not valid TOML",)),
        ("http = 3", ("http",)),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(data_dir: Path, toml: str, words: tuple[str, ...]) -> None:
    write(data_dir, toml)
    with pytest.raises(ConfigError) as caught:
        load_in(data_dir)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"LINCKIA_ROTS": "."}, ("LINCKIA_ROTS", "LINCKIA_ROOTS")),
        ({"LINCKIA_HTTP": "nowhere:port"}, ("LINCKIA_HTTP", "HOST:PORT")),
        ({"LINCKIA_HTTP": "127.0.0.1:99999"}, ("LINCKIA_HTTP", "99999")),
        ({"LINCKIA_HTTP": "http://127.0.0.1"}, ("LINCKIA_HTTP", "HOST:PORT")),
        ({"LINCKIA_HTTP": "127.0.0.1:"}, ("LINCKIA_HTTP", "HOST:PORT")),
        ({"LINCKIA_MAX_BODY_BYTES": "1 MB"}, ("LINCKIA_MAX_BODY_BYTES", "bytes")),
        ({"LINCKIA_SERVICES__EMBED": "x"}, ("LINCKIA_SERVICES__NAME__KEY",)),
        ({"LINCKIA_CONFIG": "/nowhere.toml"}, ("/nowhere.toml",)),
    ],
)
def test_a_wrong_variable_is_named(data_dir: Path, environment: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_in(data_dir, environment)
    for word in words:
        assert word in str(caught.value)


def test_variables_of_the_set_up_script_are_not_reported_as_mistakes(data_dir: Path) -> None:
    assert load_in(data_dir, {"LINCKIA_TORCH": "cpu", "LINCKIA_PYTHON": "python3.11"}).http is not None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        (":80", ("127.0.0.1", 80)),
        ("80", ("127.0.0.1", 80)),
        ("localhost", ("localhost", None)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", None)),
        ("::1", ("::1", None)),
    ],
)
def test_an_address_may_leave_out_host_or_port(data_dir: Path, text: str, address: tuple[str, int | None]) -> None:
    (data_dir / "token").write_text("0123456789abcdef")
    config = load_in(data_dir, flags=Flags(http=text, token_file=str(data_dir / "token")))
    assert config.http is not None
    assert (config.http.host, config.http.port) == address


def test_the_folder_of_prompts_is_a_setting_and_must_be_there(data_dir: Path) -> None:
    (data_dir / "mine").mkdir()
    write(data_dir, '[prompts]\ndir = "mine"\n')
    assert load_in(data_dir).prompts_dir == data_dir / "mine"
    assert load_in(data_dir, {"LINCKIA_PROMPTS_DIR": str(data_dir)}).prompts_dir == data_dir
    with pytest.raises(ConfigError, match=r"the environment: prompts\.dir: there is no folder"):
        load_in(data_dir, {"LINCKIA_PROMPTS_DIR": str(data_dir / "nowhere")})


def test_local_hosts_that_fetch_may_reach_are_a_setting(data_dir: Path) -> None:
    write(data_dir, '[fetch]\nallow = ["10.0.0.0/8"]\n')
    assert load_in(data_dir).services["fetch"] == {"allow": ["10.0.0.0/8"]}
    set_here = load_in(data_dir, {"LINCKIA_FETCH_ALLOW": "127.0.0.1, example.org"})
    assert set_here.services["fetch"] == {"allow": ["127.0.0.1", "example.org"]}
    write(data_dir, "[fetch]\nalow = []\n")
    with pytest.raises(ConfigError, match=r"fetch\.alow is not a setting; did you mean allow"):
        load_in(data_dir)


def test_transcripts_have_a_table_of_their_own_name_as_well(data_dir: Path) -> None:
    write(data_dir, "[transcripts]\nenabled = false\n[services.transcripts]\nredact = false\n")
    config = load_in(data_dir)
    assert config.services == {"transcripts": {"enabled": False, "redact": False}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llm = 1", "llm: expected a table"),
        ("transcripts = []", "transcripts: expected a table"),
        ('[fetch]\nallow = "printer"', "fetch.allow: expected a list of strings"),
        ("[fetch]\nallow = [1]", "fetch.allow: expected a list of strings"),
        ("[yaml]\nenabled = false", "yaml is not a setting"),
    ],
)
def test_a_short_table_that_is_wrong_is_named(data_dir: Path, text: str, said: str) -> None:
    write(data_dir, f"{text}\n")
    with pytest.raises(ConfigError, match=said):
        load_in(data_dir)


def test_a_service_s_own_table_is_stronger_than_its_short_one(data_dir: Path) -> None:
    for short, service in (("llm", "llm"), ("transcripts", "transcripts")):
        write(data_dir, f"[{short}]\nmodel = 1\nother = 1\n[services.{service}]\nmodel = 2\n")
        assert load_in(data_dir).services[service] == {"model": 2, "other": 1}
    assert load_in(data_dir, {"LINCKIA_TRANSCRIPTS__REDACT": "false"}).services["transcripts"]["redact"] is False
    with pytest.raises(ConfigError, match=r"LINCKIA_FETCH_ALOW is not a setting; did you mean LINCKIA_FETCH_ALLOW"):
        load_in(data_dir, {"LINCKIA_FETCH_ALOW": "a"})


def test_the_folder_of_a_package_that_is_served_is_denied(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path" / "guests").mkdir(parents=True)
    (tmp_path / "path" / "guests" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    config = load_in(data_dir, flags=Flags(packages=("guests",)))
    assert str(tmp_path / "path" / "guests") in config.denied


def test_the_language_model_has_a_table_of_its_own(data_dir: Path) -> None:
    write(data_dir, '[llm]\nurl = "http://127.0.0.1:11434"\nmodel = "small"\nkey_file = "key"\n')
    config = load_in(data_dir, {"LINCKIA_LLM__MODEL": "large", "LINCKIA_SERVICES__LLM__TIMEOUT_S": "2"})
    assert config.services["llm"] == {
        "url": "http://127.0.0.1:11434",
        "model": "large",
        "key_file": str(data_dir / "key"),
        "timeout_s": 2,
    }


def test_services_have_users_of_their_own_unless_a_setting_says_otherwise(data_dir: Path) -> None:
    assert load_in(data_dir).own_users
    write(data_dir, "own_users = false\n")
    assert not load_in(data_dir).own_users
    assert load_in(data_dir, {"LINCKIA_OWN_USERS": "true"}).own_users
    with pytest.raises(ConfigError, match="own_users"):
        load_in(data_dir, {"LINCKIA_OWN_USERS": "perhaps"})


def test_services_rest_after_a_while_that_a_setting_says(data_dir: Path) -> None:
    assert load_in(data_dir).rest_after_s == 300
    write(data_dir, "rest_after_s = 60\n")
    assert load_in(data_dir).rest_after_s == 60
    assert load_in(data_dir, {"LINCKIA_REST_AFTER_S": "0"}).rest_after_s == 0
    with pytest.raises(ConfigError, match="rest_after_s"):
        load_in(data_dir, {"LINCKIA_REST_AFTER_S": "-1"})


def test_services_have_standbys_unless_a_setting_says_otherwise(data_dir: Path) -> None:
    assert load_in(data_dir).standbys
    write(data_dir, "standbys = false\n")
    assert not load_in(data_dir).standbys
    assert load_in(data_dir, {"LINCKIA_STANDBYS": "true"}).standbys is True
    with pytest.raises(ConfigError, match="standbys"):
        load_in(data_dir, {"LINCKIA_STANDBYS": "perhaps"})


def test_a_file_of_yaml_and_its_names_are_taken_as_well(data_dir: Path, tmp_path: Path) -> None:
    origins = "cors_origins: ['http://localhost:5173', 'https://app.example.com']"
    (data_dir / "config.yaml").write_text(f"server:\n  port: 3100\n  host: localhost\n  {origins}\n")
    http = load_in(data_dir).http
    assert http is not None
    assert (http.host, http.port) == ("localhost", 3100)
    assert http.allowed_origins == ("http://localhost:5173", "https://app.example.com")
    write(data_dir, "[server]\nport = 3200\n")
    over = load_in(data_dir).http
    assert over is not None
    assert (over.host, over.port) == ("localhost", 3200)
    named = tmp_path / "other.yml"
    named.write_text("log_level: debug\n")
    assert load_in(data_dir, flags=Flags(config_file=str(named))).log_level == "debug"


def test_variables_of_other_programs_change_nothing(data_dir: Path) -> None:
    theirs = {"SERVER_PORT": "3300", "SERVER_HOST": "0.0.0.0", "CORS_ORIGINS": "*"}
    assert load_in(data_dir, theirs) == load_in(data_dir)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.yaml", "server: {prot: 1}", r"server\.prot is not a setting; known: host, port, cors_origins"),
        ("config.yaml", "server: [1]", "server: expected a table"),
        ("config.yaml", "{", "config.yaml is not valid YAML"),
        ("config.yaml", "[1]", "must contain keys and values"),
        ("config.yaml", "server: {port: yes}", r"http\.port"),
        ("linckia.toml", "[server]\nport = 1\n[http]\nport = 2", "mean the same and are both set"),
    ],
)
def test_mistakes_under_alternative_names_are_reported(data_dir: Path, name: str, text: str, said: str) -> None:
    (data_dir / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_in(data_dir)


def test_root_may_be_only_read_and_all_are_in_a_read_only_system(data_dir: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    write(data_dir, 'roots = [{path = "../notes", mode = "read"}, "../work", {path = "../notes"}]\n')
    config = load_in(data_dir)
    assert (config.roots, config.read_only_roots, config.read_only) == ((root, tmp_path / "work"), (root,), False)
    for config in (
        load_in(data_dir, flags=Flags(read_only=True)), load_in(data_dir, {"LINCKIA_READ_ONLY": "true"})
    ):  # fmt: skip
        assert (config.read_only_roots, config.read_only) == (config.roots, True)


def test_linckia_s_own_folders_are_denied_under_every_name(data_dir: Path, tmp_path: Path) -> None:
    for name in ("token", "key", "other.toml"):
        (tmp_path / name).write_text('deny = ["~/vault"]\n' if name == "other.toml" else "0123456789abcdef")
    (tmp_path / "link").symlink_to(data_dir)
    (tmp_path / "link.toml").symlink_to(tmp_path / "other.toml")
    write(data_dir, '[http]\ntoken_file = "../token"\n[llm]\nkey_file = "../key"\n')
    environment = {"LINCKIA_DATA": str(tmp_path / "link"), "LINCKIA_CONFIG": str(tmp_path / "link.toml")}
    denied = load_in(data_dir, environment).denied
    for name in ("data", "link", "token", "key", "other.toml", "link.toml"):
        assert str(tmp_path / name) in denied, name
    assert str(Path("~/vault").expanduser()) in denied
    # The sources, and the interpreter's own.
    for module in (kernel, os):
        assert any(Path(str(module.__file__)).resolve().is_relative_to(path) for path in denied)


def test_denials_of_all_layers_add_up_as_paths_or_patterns(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "odd[1]").mkdir()
    write(data_dir, f'deny = [".env", "private/keys", "{tmp_path}/odd[1]", "{tmp_path}/vault-*/x", "#odd"]\n')
    config = load_in(data_dir, {"LINCKIA_DENY": f"*.pem:{tmp_path}/more"})
    assert {f"{tmp_path}/odd[1]", f"{tmp_path}/more"} <= set(config.denied)
    assert config.denied_patterns == ("**/.env", "**/private/keys", f"{tmp_path}/vault-*/x", "**/#odd", "**/*.pem")


def test_root_in_the_installation_is_refused(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="belongs to Linckia itself"):
        load_in(data_dir, flags=Flags(roots=(str(Path(kernel.__file__).parent),)))


def test_prompts_of_roots_may_be_left_out(data_dir: Path) -> None:
    assert load_in(data_dir).prompts_from_roots
    write(data_dir, "[prompts]\nfrom_roots = false\n")
    assert not load_in(data_dir).prompts_from_roots
    assert load_in(data_dir, {"LINCKIA_PROMPTS_FROM_ROOTS": "true"}).prompts_from_roots


def test_faults_are_injected_only_by_a_module_that_is_allowed(data_dir: Path) -> None:
    assert load_in(data_dir, {"LINCKIA_CHAOS": "true"}).chaos_module is None
    write(data_dir, '[chaos]\nmodule = "some.faults"\n')
    with pytest.raises(ConfigError, match=r"chaos\.module is 'some\.faults', which needs chaos\.allowed = true"):
        load_in(data_dir)
    assert load_in(data_dir, {"LINCKIA_CHAOS": "true"}).chaos_module == "some.faults"
