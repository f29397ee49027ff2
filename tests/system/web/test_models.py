"""The models over HTTP from a real kernel with a pool of two embedders, one of which is killed while clients wait."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.embed import weights
from tests.system.running import HTTP, RunningKernel, running
from tests.unit.rerank.tiny import save_cross_encoder

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")

MODEL = "all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    reranker = save_cross_encoder(tmp_path_factory.mktemp("cross"))
    environment = {
        "LINCKIA_SERVICES__EMBED__WORKERS": "2",
        "LINCKIA_SERVICES__EMBED__MODEL": MODEL,
        "LINCKIA_SERVICES__RERANK__MODEL": str(reranker),
    }
    services = ("embed", "rerank")
    with running(tmp_path_factory.mktemp("data"), options=HTTP, environment=environment, services=services) as started:
        yield started


@pytest.fixture(scope="module")
def openai() -> Any:
    """The official client's library."""
    return pytest.importorskip("openai", reason="the official client is not installed")


def base_url(kernel: RunningKernel) -> str:
    url: str = kernel.status()["http_url"]
    return url.removesuffix("/mcp")


def metrics(kernel: RunningKernel) -> dict[str, float]:
    with urllib.request.urlopen(f"{base_url(kernel)}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_the_official_client_gets_unit_vectors_in_both_formats(kernel: RunningKernel, openai: Any) -> None:
    with openai.OpenAI(base_url=f"{base_url(kernel)}/v1", api_key="none") as client:
        # Left to itself, the client asks for base64 and decodes it.
        first = client.embeddings.create(model=MODEL, input=["a cat sat", "sea stars"])
        plain = client.embeddings.create(model=MODEL, input="a cat sat", encoding_format="float")
        assert [len(item.embedding) for item in first.data] == [384, 384]
        assert sum(x * x for x in plain.data[0].embedding) == pytest.approx(1, abs=1e-3)
        assert first.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=0.02)
        assert plain.usage.prompt_tokens == 5
        ids = [101, 1037, 4937, 2938, 102]
        by_ids = client.embeddings.create(model=MODEL, input=ids, encoding_format="float")
        assert by_ids.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=0.02)
        assert next(model.id for model in client.models.list()).endswith(MODEL)


def test_token_ids_of_another_tokenizer_are_refused(kernel: RunningKernel, openai: Any) -> None:
    with openai.OpenAI(base_url=f"{base_url(kernel)}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match="ids of other tokenizers cannot be used") as caught:
            client.embeddings.create(model=MODEL, input=[64, 8415, 7731])
        assert caught.value.body["param"].startswith("input")
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            client.embeddings.create(model="text-embedding-3-small", input="a")


def test_every_client_is_answered_while_one_of_the_pool_is_killed(kernel: RunningKernel, openai: Any) -> None:
    before = metrics(kernel)
    killed = threading.Barrier(5)
    with openai.OpenAI(base_url=f"{base_url(kernel)}/v1", api_key="none", max_retries=0) as client:

        def texts(number: int, rounds: range) -> int:
            """How many vectors there are for the texts of these rounds."""
            asked = ([f"text {number} {round_} {n} " + "word " * 40 for n in range(8)] for round_ in rounds)
            return sum(len(client.embeddings.create(model=MODEL, input=each).data) for each in asked)

        def ask(number: int) -> int:
            try:
                before_it = texts(number, range(2))
            except BaseException:
                killed.abort()
                raise
            killed.wait()
            return before_it + texts(number, range(2, 6))

        with ThreadPoolExecutor(4) as clients:
            answers = [clients.submit(ask, number) for number in range(4)]
            killed.wait()
            kernel.kill("embed")
            assert [answer.result(timeout=60) for answer in answers] == [6 * 8] * 4
    kernel.wait_ready("embed", "embed-2")
    after = metrics(kernel)
    deaths = 'linckia_service_deaths_total{cause="signal",service="%s"}'
    assert after[deaths % "embed"] == before[deaths % "embed"] + 1
    assert after[deaths % "embed-2"] == before[deaths % "embed-2"] == 0
    assert (
        after['linckia_service_calls_total{service="embed"}']
        >= before['linckia_service_calls_total{service="embed"}'] + 24
    )
    assert after['linckia_service_failures_total{kind="unavailable",service="embed"}'] == 0
    assert after['linckia_service_recovery_seconds{service="embed"}'] > 0


def test_both_of_the_pool_work(kernel: RunningKernel) -> None:
    status = {service["name"]: service for service in kernel.status()["services"]}
    assert status["embed"]["info"]["fingerprint"] == status["embed-2"]["info"]["fingerprint"]
    assert status["embed"]["pid"] != status["embed-2"]["pid"]
    assert not re.search("not handled|Traceback", kernel.log("embed-2"))


def test_rerank_over_http_is_the_service(kernel: RunningKernel, openai: Any) -> None:
    with openai.OpenAI(base_url=f"{base_url(kernel)}/v1", api_key="none") as client:
        body = {"query": "who purr", "documents": ["dogs bark", "cats purr", "fish swim"], "top_n": 2}
        answer = client.post("/rerank", cast_to=object, body=body)
        scores = [result["relevance_score"] for result in answer["results"]]
        assert len(scores) == 2
        assert scores == sorted(scores, reverse=True)
    info = kernel.service("rerank")["info"]
    assert info["device"] == "cpu"


def test_a_pool_of_an_impossible_size_is_refused_at_the_start(tmp_path: Path) -> None:
    environment = {"LINCKIA_SERVICES__EMBED__WORKERS": "0"}
    with pytest.raises(AssertionError, match=r"the kernel did not start"), running(tmp_path, environment=environment):
        pass


def test_restarting_a_pool_restarts_all_of_it_and_one_always_answers(kernel: RunningKernel) -> None:
    names = ("embed", "embed-2")
    before = {name: kernel.service(name)["pid"] for name in names}
    with ThreadPoolExecutor(1) as threads:
        restarting = threads.submit(kernel.call, "kernel_restart", {"service": "embed"})
        while not restarting.done():
            assert len(kernel.call("embed_texts", {"texts": ["a cat sat"], "kind": "query"})["vectors"]) > 0
        assert all(name in restarting.result()["message"] for name in names)
    assert all(kernel.service(name)["pid"] != before[name] for name in names)
