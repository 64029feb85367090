"""F(w_t), the loss of the global model on the training samples of all clients."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import filfl
from filfl.config.config import Config
from filfl.report.measures import MEASURES
from filfl.simulation.build import make_parts


def rows_of(data: filfl.FederatedData) -> list[int]:
    """The places of the training samples of all clients."""
    return [i for start, end in zip(data.offsets[:-1], data.train_ends, strict=True) for i in range(start, end)]


def test_global_train_loss_is_that_of_the_model_on_the_training_samples_of_all_clients(small: dict[str, Any]) -> None:
    config = {**small, "rounds": 3, "evaluate.every": 2, "evaluate.train_samples": 10**9}
    result = filfl.simulate(config)
    data = Config.read(config).data.load(0)
    rows = rows_of(data)
    assert len(rows) == data.num_train.sum() < len(data.x), "the validation samples are left out"
    x = torch.as_tensor(data.x[rows]) * torch.as_tensor(data.scale) + torch.as_tensor(data.shift)
    with torch.no_grad():
        loss = cross_entropy(result.model(x), torch.as_tensor(data.y[rows]))
    first, second, last = (record["metrics"].get("global_train_loss") for record in result.records)
    assert first is None and second is not None, "it is measured where the model is tested"
    assert last == pytest.approx(float(loss), rel=1e-4)
    assert MEASURES["global-train-loss"].of(result.records) == pytest.approx((second + last) / 2)


def test_the_sample_of_training_samples_depends_on_the_seed_alone(small: dict[str, Any]) -> None:
    def drawn(**changes: Any) -> Any:
        config = Config.read({**small, "evaluate.train_samples": 20, **changes}).with_own()
        return make_parts(config, None, None, print).train_set

    one, other = drawn(), drawn(**{"filter.name": "none", "selection.k": 1})
    assert len(one) == 20 and torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    assert not torch.equal(one.x, drawn(seed=1).x)
    assert Config.read(small).evaluate.train_samples == 0 and drawn(**{"evaluate.train_samples": 0}) is None


def test_measuring_the_global_train_loss_changes_nothing_else(small: dict[str, Any]) -> None:
    plain, measured = (filfl.simulate({**small, "evaluate.train_samples": m}).records for m in (0, 20))
    for record in measured:
        assert record["metrics"].pop("global_train_loss") > 0
    assert measured == plain


def test_every_executor_measures_the_same_global_train_loss(small: dict[str, Any]) -> None:
    losses = {
        mode: [
            record["metrics"]["global_train_loss"]
            for record in filfl.simulate({**small, "evaluate.train_samples": 20, "execution.mode": mode}).records
        ]
        for mode in ("serial", "vectorized", "processes")
    }
    assert losses["vectorized"] == pytest.approx(losses["serial"], rel=1e-3)
    assert losses["processes"] == pytest.approx(losses["serial"], rel=1e-3)
