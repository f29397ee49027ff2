"""The model that everybody has, and texts as it reads them."""

from __future__ import annotations

import pytest

from proto.ops.embed import TextKind
from services.embed import weights
from services.embed.tokens import TextTokenizer
from services.embed.weights import ModelFiles, resolve
from services.shared.models.checkpoint import Ids
from tests.unit.embed.samples import TEXTS


@pytest.fixture(scope="session")
def packaged() -> ModelFiles:
    pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")
    return resolve(weights.PACKAGED[1])


@pytest.fixture(scope="session")
def sequences(packaged: ModelFiles) -> list[Ids]:
    return TextTokenizer(packaged).encode(TEXTS, TextKind.PASSAGE).ids
