"""examples/lora: adapters of `peft` on a tiny transformer made from a config. Only the adapters are sent and held."""

import gc
from typing import Any

import pytest
import torch
from torch import nn

import filfl
from live_tensors import live_bytes
from replay import replay

REASON = "peft and transformers are not installed: pip install '.[dev]'"
pytest.importorskip("peft", reason=REASON)
pytest.importorskip("transformers", reason=REASON)

import lora  # noqa: E402  (needs both)

ADAPTERS = 2 * 2 * (32 * 4 + 4 * 32)  # A and B of query and value in two layers
HEAD = 32 * lora.CLASSES + lora.CLASSES
UPDATE = 4 * (ADAPTERS + HEAD) + 16
"""Bytes of a reply: the trained numbers, the number of examples and the train loss."""


def size(model: nn.Module) -> int:
    """The bytes of all parameters: what a client sent before frozen parameters were left out."""
    return sum(p.nbytes for p in model.parameters())


def test_the_example_uploads_adapters_and_filters_wrong_labels(capsys: pytest.CaptureFixture[str]) -> None:
    lora.main()
    shown = capsys.readouterr().out
    whole = size(lora.Classifier())
    assert whole > 9 * UPDATE
    assert f"upload per client: {UPDATE:,} bytes instead of {whole:,}" in shown
    kept = shown.split("filtered in: [")[1].split("]")[0].split(", ")
    assert kept and all(int(k) < lora.CLIENTS - lora.WRONG for k in kept)


def test_memory_of_a_filter_round_is_n_adapters() -> None:
    seen: list[int] = []

    def keep_all(clients: Any, reward: Any, rng: Any) -> filfl.Filtering:
        reward(frozenset(clients))
        seen.append(live_bytes())
        return filfl.Filtering(kept=tuple(clients))

    gc.collect()
    before = live_bytes()
    config = {**lora.SETTINGS, "rounds": 1, "training.epochs": 1, "execution.mode": "serial"}
    del config["filter.name"]
    result = filfl.simulate(config, data=lora.load_data(), model=lora.Classifier, filter=keep_all)
    model, n = size(result.model), lora.CLIENTS
    # The network, the samples, and per client the update and its copy in float64 for exact sums.
    assert n * UPDATE < seen[0] - before < model + n * 4 * UPDATE + model < n * model


def test_vectorized_trains_the_same_adapters() -> None:
    def eager() -> nn.Module:
        """torch has no batched form of its fused attention."""
        model = lora.Classifier()
        model.transformer.get_base_model().set_attn_implementation("eager")
        return model

    config = {**lora.SETTINGS, "rounds": 1, "training.epochs": 1, "filter.name": "dgf"}
    data = lora.load_data()
    serial = filfl.simulate({**config, "execution.mode": "serial"}, data=data, model=eager)
    messages: list[str] = []
    vectorized = {**config, "execution.mode": "vectorized"}
    again = replay(vectorized, serial.records, data=data, model=eager, say=messages.append)
    assert not any("falling back" in text for text in messages)
    for one, other in zip(serial.model.parameters(), again.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
