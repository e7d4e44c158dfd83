"""Models and servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import statewell as sw
from statewell.architectures import resolve
from statewell.models import LanguageModel
from statewell.text import load_tokenizer
from tests.serve.live import Live, config_in, live
from tests.text.vocabularies import FORMATS


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    return sw.build("gated_deltanet:nano", seed=3)


@pytest.fixture(scope="session")
def speaker(tmp_path_factory) -> LanguageModel:
    """A nano K3 with K3's kind of tokenizer, markers and all; its weights are random."""
    tokenizer = load_tokenizer(FORMATS["kimi_k3"](tmp_path_factory.mktemp("k3")))
    assert tokenizer is not None
    made = sw.build(replace(resolve("kimi_k3:nano"), vocab=tokenizer.vocab), seed=0)
    made.tokenizer = tokenizer
    return made


@pytest.fixture(scope="module")
def server(model, tmp_path_factory) -> Iterator[Live]:
    with live(model, config_in(tmp_path_factory.mktemp("sessions"))) as running:
        yield running
