"""The cross-encoder returns the scores that transformers returns, for every length, batch and precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from services.rerank.checkpoint import PairTokenizer, resolve
from services.shared.models.checkpoint import Checkpoint, ModelMissing
from services.shared.models.device import Precision
from tests.unit.rerank.tiny import MAX_TOKENS, WORDS, save_cross_encoder

if TYPE_CHECKING:
    from services.rerank.model import CrossEncoder

QUERY = "who purr"
TEXTS = ["cats purr and sleep", "dogs", "", "fish swim in the water", "dogs bark at cats " * 20, "unknown words"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    found = resolve(str(save_cross_encoder(tmp_path_factory.mktemp("cross"))))
    assert found is not None
    return found


def opened(files: Checkpoint, precision: Precision = Precision.FP32) -> CrossEncoder:
    # With torch, which takes seconds, and each process that runs tests reads all files of tests.
    from services.rerank.model import CrossEncoder

    return CrossEncoder(files, precision=precision)


def reference(files: Checkpoint, query: str, texts: Sequence[str]) -> list[float]:
    """What transformers answers for each pair alone, with its own tokenizer, in float32."""
    import torch

    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(files.tokenizer), pad_token="[PAD]")
    tokenizer.backend_tokenizer.no_padding()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(files.folder, local_files_only=True).eval()
    scores: list[float] = []
    with torch.inference_mode():
        for text in texts:
            encoded = tokenizer(
                [query], [text], truncation="only_second", max_length=files.max_tokens, return_tensors="pt",
                return_token_type_ids=True,
            )  # fmt: skip
            scores.append(torch.sigmoid(model(**encoded).logits)[0, 0].item())
    return scores


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [(Precision.FP32, 1e-5), (Precision.BF16, 0.05)])
def test_scores_agree_with_transformers(files: Checkpoint, precision: Precision, tolerance: float) -> None:
    pairs = PairTokenizer(files).encode(QUERY, TEXTS)
    scores = opened(files, precision).compute(pairs.pairs)
    expected = reference(files, QUERY, TEXTS)
    assert max(expected) - min(expected) > 0.2
    assert scores.shape == (len(TEXTS), 1)
    assert scores[:, 0] == pytest.approx(expected, abs=tolerance)


@pytest.mark.slow
def test_a_pairs_score_does_not_depend_on_its_batch(files: Checkpoint) -> None:
    encoder = opened(files)
    pairs = PairTokenizer(files).encode(QUERY, TEXTS * 7).pairs
    alone = np.concatenate([encoder.compute([pair]) for pair in pairs])
    assert encoder.compute(pairs) == pytest.approx(alone, abs=1e-5)


def test_a_model_of_modern_berts_family_agrees_with_transformers(tmp_path: Path) -> None:
    import torch

    transformers = pytest.importorskip("transformers")
    save_cross_encoder(tmp_path)
    torch.manual_seed(5)
    config = transformers.ModernBertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=MAX_TOKENS, local_attention=8, num_labels=1, pad_token_id=0, bos_token_id=2,
        eos_token_id=3, cls_token_id=2, sep_token_id=3, classifier_pooling="mean", initializer_cutoff_factor=1e3,
        initializer_range=0.5,
    )  # fmt: skip
    transformers.ModernBertForSequenceClassification(config).save_pretrained(tmp_path, safe_serialization=True)
    files = resolve(str(tmp_path))
    assert files is not None
    pairs = PairTokenizer(files).encode(QUERY, TEXTS).pairs
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, local_files_only=True).eval()
    with torch.inference_mode():
        logits = [model(input_ids=torch.from_numpy(pair.ids.astype(np.int64))[None]).logits for pair in pairs]
    expected = [torch.sigmoid(each)[0, 0].item() for each in logits]
    assert max(expected) - min(expected) > 0.05
    assert opened(files).compute(pairs)[:, 0] == pytest.approx(expected, abs=1e-5)


def test_the_text_of_a_pair_is_truncated_and_that_is_reported(files: Checkpoint) -> None:
    encoded = PairTokenizer(files).encode(QUERY, TEXTS)
    assert [len(pair) for pair in encoded.pairs] == [9, 6, 5, 10, MAX_TOKENS, 7]
    assert (encoded.truncated, encoded.query_truncated) == ([4], False)
    assert encoded.pairs[1].types.tolist() == [0, 0, 0, 0, 1, 1]


def test_a_long_query_leaves_half_of_the_room_to_the_text(files: Checkpoint) -> None:
    encoded = PairTokenizer(files).encode("cats " * 50, ["dogs " * 50, "fish"])
    cats, dogs = WORDS.index("cats"), WORDS.index("dogs")
    assert encoded.query_truncated
    assert encoded.truncated == [0]
    ids = encoded.pairs[0].ids.tolist()
    assert ids.count(cats) == MAX_TOKENS // 2 - 2
    assert ids.count(dogs) == MAX_TOKENS - 3 - ids.count(cats)


def test_looking_at_the_beginning_of_a_long_text_changes_nothing(files: Checkpoint) -> None:
    tokenizer = PairTokenizer(files)
    spread = tokenizer.encode(QUERY, [" " * 5000 + "cats " * 30]).pairs[0]
    assert spread.ids.tolist() == tokenizer.encode(QUERY, ["cats " * 30]).pairs[0].ids.tolist()


def test_auto_uses_a_cached_model_and_otherwise_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert resolve() is None
    save_cross_encoder(tmp_path / "models--BAAI--bge-reranker-base" / "snapshots" / "abc")
    found = resolve(max_tokens=10)
    assert found is not None
    assert (found.name, found.max_tokens) == ("BAAI/bge-reranker-base", 10)


def test_a_missing_named_model_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelMissing, match="hf download some/reranker"):
        resolve("some/reranker")


def test_an_encoder_without_a_head_is_refused(tmp_path: Path) -> None:
    save_cross_encoder(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace("BertForSequenceClassification", "BertModel"))
    with pytest.raises(ModelMissing, match="not a cross-encoder"):
        resolve(str(tmp_path))


def test_a_classifier_of_several_classes_is_refused(tmp_path: Path) -> None:
    files = resolve(str(save_cross_encoder(tmp_path, labels=3)))
    assert files is not None
    with pytest.raises(ModelMissing, match="returns 3 numbers"):
        opened(files)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    save_cross_encoder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelMissing, match="pickle"):
        resolve(str(tmp_path))
