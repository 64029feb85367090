"""Run the Flower examples of the documentation (code blocks marked `py`) with an in-memory federation."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sites import batches, blobs, federation, initial, loss_on_v, new_net, numbers, plain_app

from filfl.flower import FilFL, FilteringSet
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")

ROOT = Path(__file__).parents[2]


def names() -> dict[str, Any]:
    """The names that the examples expect to be defined: network, data, ClientApp and ServerApp of the user."""
    x, y = blobs(0)
    own = {"Net": new_net, "x": x, "y": y, "trainloader": batches, "valloader": batches}
    flower = {"ClientApp": ClientApp, "FedAvg": FedAvg, "MetricRecord": MetricRecord, "torch": torch, "np": np}
    return {**own, **flower, "grid": federation(), "arrays": initial(), "evaluate": loss_on_v}


def run_examples(page: Path, defined: dict[str, Any]) -> list[str]:
    """Run the examples of a page one after the other, and return them."""
    examples = re.findall(r"```py\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for code in examples:
        exec(code, defined)
    return examples


def test_all_pages_with_flower_examples_are_tested() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/README.md")]
    found = {page.name for page in pages if "```py\n" in page.read_text(encoding="utf-8")}
    assert found == {"flower.md"}


def test_flower_page_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    defined = names()
    assert len(run_examples(ROOT / "docs" / "flower.md", defined)) == 9
    records = read_run(tmp_path / "runs" / "hospital").records
    assert len(records) == 50 and any(len(record["filtered"]) < 6 for record in records)
    assert not np.allclose(numbers(defined["result"].arrays), numbers(initial()))

    coefficients, intercept = np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([0.5, 0.0])
    assert defined["sklearn_logits"]([coefficients, intercept], np.array([[3.0, 1.0]])).tolist() == [[5.5, 1.0]]

    # The app answers the queries of power-of-choice, and keeps its weights in filter rounds by logits.
    app = plain_app(app=defined["app"])
    for selection, options in (("power-of-choice", {}), ("random", {"filter.transport": "logits"})):
        strategy = FilFL(
            FedAvg(fraction_evaluate=0.0),
            k=2,
            selection=selection,
            evaluate=FilteringSet(new_net, *blobs(0)),
            options={"filter.reward": "ensemble", **options},
            out=tmp_path / selection,
        )
        strategy.start(federation(app), initial(), num_rounds=2)
        assert not any(record["refused"] for record in read_run(tmp_path / selection).records)
