"""`linckia models` as a user runs it, with a hub on the loopback: downloaded whole or not at all, and then used."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.cli.models import with_setting
from proto.control.commands import Failed
from proto.host.models import KNOWN, known
from tests.system.cli.clients import LINCKIA, TIMEOUT_S
from tests.system.cli.hub import Hub, serving
from tests.system.running import REPOSITORY, running, wait_until
from tests.unit.rerank.tiny import save_cross_encoder

NAME = "ms-marco-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_cross_encoder(tmp_path_factory.mktemp("published"))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"the same in another form")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture
def hub(published: Path) -> Iterator[Hub]:
    with serving(published) as started:
        yield started


def environment(tmp_path: Path, endpoint: str) -> dict[str, str]:
    return {
        **os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1",
        "LINCKIA_DATA": str(tmp_path / "data"), "HF_HUB_OFFLINE": "0", "LINCKIA_TOKEN": "off",
    }  # fmt: skip


def models(tmp_path: Path, endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LINCKIA, "models", *words], env=environment(tmp_path, endpoint), cwd=REPOSITORY, capture_output=True,
        text=True, timeout=4 * TIMEOUT_S, check=False,
    )  # fmt: skip


def snapshot(tmp_path: Path) -> Path:
    model = known(NAME)
    assert model is not None
    return tmp_path / "hub" / "models--cross-encoder--ms-marco-MiniLM-L6-v2" / "snapshots" / model.revision


def test_known_models_are_listed_with_selection_criteria(tmp_path: Path) -> None:
    listed = json.loads(models(tmp_path, "http://127.0.0.1:9", "--json").stdout)
    assert [model["name"] for model in listed] == [model.name for model in KNOWN]
    assert {model["service"] for model in listed} == {"embed", "rerank"}
    assert all(len(model["revision"]) == 40 and model["licence"] and model["languages"] for model in listed)
    assert [model["name"] for model in listed if model["here"]] == ["sentence-transformers/all-MiniLM-L6-v2"]
    table = models(tmp_path, "http://127.0.0.1:9").stdout
    assert all(model.short_name in table for model in KNOWN)


def test_a_killed_download_is_resumed(tmp_path: Path, hub: Hub) -> None:
    # Its library writes 10 MB at once.
    weights = hub.files["model.safetensors"] = os.urandom(25_000_000)
    hub.stalls_after = 22_000_000
    command = [*LINCKIA, "models", "get", NAME]
    first = subprocess.Popen(
        command, env=environment(tmp_path, hub.url), cwd=REPOSITORY, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert hub.stalled.wait(TIMEOUT_S)
    wait_until(lambda: any(path.stat().st_size for path in (tmp_path / "hub").rglob("*.partial")), TIMEOUT_S)
    first.kill()
    first.wait()
    hub.stalls_after = None
    hub.go_on.set()
    assert not (snapshot(tmp_path) / "model.safetensors").exists()
    done = models(tmp_path, hub.url, "get", NAME)
    assert done.returncode == 0, done.stderr
    assert (snapshot(tmp_path) / "model.safetensors").read_bytes() == weights
    begins = [begin for name, begin in hub.begins if name == "model.safetensors"]
    assert begins[0] == 0
    assert begins[-1] >= 10_000_000
    # Neither the same weights in another form nor a pickle.
    assert not {name for name, _ in hub.begins} & {"onnx/model.onnx", "pytorch_model.bin"}


def test_damaged_downloads_are_not_kept(tmp_path: Path, hub: Hub) -> None:
    hub.flips = True
    refused = models(tmp_path, hub.url, "get", NAME)
    assert refused.returncode == 1
    assert "model.safetensors arrived damaged and was removed" in refused.stderr
    assert not (snapshot(tmp_path) / "model.safetensors").exists()
    hub.flips = False
    assert models(tmp_path, hub.url, "get", NAME).returncode == 0
    assert (snapshot(tmp_path) / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_without_a_hub_one_sentence_names_the_remedy(tmp_path: Path, hub: Hub) -> None:
    # Nothing listens on the discard port of the loopback.
    away = models(tmp_path, "http://127.0.0.1:9", "get", NAME)
    assert away.returncode == 1
    assert "could not be downloaded from http://127.0.0.1:9" in away.stderr
    assert "HF_ENDPOINT" in away.stderr
    assert "Traceback" not in away.stderr + away.stdout
    # Its own library would try six times.
    assert "Retrying" not in away.stderr
    del hub.files["tokenizer.json"]
    partial = models(tmp_path, hub.url, "get", NAME)
    assert partial.returncode == 1
    assert "has no tokenizer.json" in partial.stderr
    for words, said in (
        (("get", "nonsense"), "unknown model 'nonsense'"), (("get",), "which model?"), (("use", "nonsense"), "known"),
        (("use", "bge-small-en-v1.5"), "linckia models get bge-small-en-v1.5"), (("list", NAME), "takes no NAME"),
    ):  # fmt: skip
        refused = models(tmp_path, hub.url, *words)
        assert refused.returncode in (1, 2)
        assert said in refused.stderr


def test_further_layers_are_downloaded_with_the_weights(tmp_path: Path, hub: Hub) -> None:
    hub.files["2_Dense/model.safetensors"] = os.urandom(1000)
    hub.files["2_Dense/config.json"] = b"{}"
    done = models(tmp_path, hub.url, "get", NAME)
    assert done.returncode == 0, done.stderr
    stored = snapshot(tmp_path) / "2_Dense" / "model.safetensors"
    assert stored.read_bytes() == hub.files["2_Dense/model.safetensors"]


def test_a_model_published_only_as_a_pickle_says_how_to_convert_it(tmp_path: Path, hub: Hub) -> None:
    del hub.files["model.safetensors"]
    refused = models(tmp_path, hub.url, "get", NAME)
    assert refused.returncode == 1
    assert "published only as a pickle" in refused.stderr
    assert not hub.begins


def test_a_gated_model_says_where_its_licence_is_accepted(tmp_path: Path, hub: Hub) -> None:
    hub.gated = True
    refused = models(tmp_path, hub.url, "get", "embeddinggemma-300m")
    assert refused.returncode == 1
    assert f"accept it at {hub.url}/google/embeddinggemma-300m" in refused.stderr
    assert "hf auth login" in refused.stderr


def test_a_model_is_used_at_once_and_one_that_cannot_be_loaded_changes_nothing(tmp_path: Path, hub: Hub) -> None:
    settings = tmp_path / "data" / "linckia.toml"
    with running(tmp_path / "data", services=("rerank",), environment=environment(tmp_path, hub.url)) as kernel:
        reason = kernel.call("rerank_model")["reason"]
        assert "linckia models get" in reason
        assert "maxsim" in reason
        # It looks like one from outside, and its service refuses it.
        wrong = save_cross_encoder(tmp_path / "wrong")
        config = (wrong / "config.json").read_text()
        (wrong / "config.json").write_text(
            config.replace("BertForSequenceClassification", "NoForSequenceClassifications")
        )
        refused = models(tmp_path, hub.url, "use", str(wrong))
        assert refused.returncode == 1
        assert "is not used, and everything is as before" in refused.stderr
        assert not settings.exists()
        assert not kernel.call("rerank_model")["available"]
        assert models(tmp_path, hub.url, "get", NAME).returncode == 0
        used = models(tmp_path, hub.url, "use", NAME)
        assert used.returncode == 0, used.stderr
        assert "is in use: rerank is ready with it" in used.stdout
        assert tomllib.loads(settings.read_text())["services"]["rerank"]["model"] == f"cross-encoder/{NAME}"
        ranked = kernel.call("rerank_pairs", {"query": "who purr", "texts": ["cats purr", "dogs bark"]})
        assert (ranked["model"], len(ranked["ranked"])) == (f"cross-encoder/{NAME}", 2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[services.embed]\nmodel = "x"\n'),
        ("roots = []  # none\n", 'roots = []  # none\n\n[services.embed]\nmodel = "x"\n'),
        (
            '[services.embed] # mine\nprecision = "fp32"\nmodel = "old" # why\n[http]\nport = 1\n',
            '[services.embed] # mine\nprecision = "fp32"\nmodel = "x" # why\n[http]\nport = 1\n',
        ),
        ("[services.embed]\n[http]\nport = 1\n", '[services.embed]\nmodel = "x"\n[http]\nport = 1\n'),
        ('services.embed.model = "y" # why\n', 'services.embed.model = "x" # why\n'),
        ("services = { } # none\n", 'services = { embed = {model = "x"}} # none\n'),
        ('[services]\nembed = { a = 1, model = "y" } # b\n', '[services]\nembed = { a = 1, model = "x" } # b\n'),
        ("[a]\r\nb = [1,\r\n 2]\r\n", '[a]\r\nb = [1,\r\n 2]\r\n\n[services.embed]\nmodel = "x"\n'),
        (
            "[services.embed.x]\na = 1\n[http]\nport = 1\n[services.rerank]\n",
            '[services.embed]\nmodel = "x"\n\n[services.embed.x]\na = 1\n[http]\nport = 1\n[services.rerank]\n',
        ),
        (
            "[services.echo]\na = 1\n[http]\nport = 1\n[services.rerank]\n",
            '[services.echo]\na = 1\n\n[services.embed]\nmodel = "x"\n[http]\nport = 1\n[services.rerank]\n',
        ),
    ],
)
def test_a_setting_is_changed_and_all_else_stays(before: str, after: str) -> None:
    assert with_setting(before, "services.embed", "model", "x") == after


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("services = 1\n", "`services` must be a table"),
        ("[[services]]\n", "`services` must be a table"),
        ("[services]\nembed = []\n", "`embed` must be a table"),
        ("[services\n", "not valid TOML"),
        ("a = 1\na = 2\n", "not valid TOML"),
    ],
)
def test_settings_that_hold_no_such_table_are_refused(text: str, reason: str) -> None:
    with pytest.raises(Failed, match=reason):
        with_setting(text, "services.embed", "model", "x")


@pytest.mark.parametrize("value", ["C:\\models\\a", 'say "hi"', "naïve ✓", "a\nb\t\x01"])
def test_a_setting_may_be_any_text(value: str) -> None:
    assert tomllib.loads(with_setting("", "a", "b", value)) == {"a": {"b": value}}
