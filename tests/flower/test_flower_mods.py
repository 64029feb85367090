"""Mods of Flower beside those of filfl: what leaves a client has passed the mods for differential privacy."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from sites import SITES, batches, blobs, federation, initial, new_net, numbers, plain_app

from federation import MemoryGrid
from filfl.errors import RunError
from filfl.flower import FilFL, FilteringSet, add_queries, keep_weights
from filfl.flower.logit_messages import LOGITS
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")

BY_LOGITS = {"filter.reward": "ensemble", "filter.transport": "logits"}
CLIP = 0.02
X, Y = blobs(0)


def keep() -> Any:
    return keep_weights(lambda context: new_net())


def local_dp() -> LocalDpMod:
    return LocalDpMod(clipping_norm=CLIP, sensitivity=1e-4, epsilon=1.0, delta=0.5)


def watch(message: Message, context: Context, call_next: Any) -> Message:
    """A mod that looks at messages and lets them pass."""
    reply = call_next(message, context)
    assert reply.has_error() or reply.has_content()
    return reply


def app_with(mods: list[Any], of_train: list[Any] | None = None) -> ClientApp:
    """The mods of the app, and those of its train function alone."""
    app, plain = ClientApp(mods=mods), plain_app()
    app.train(mods=of_train or [])(lambda message, context: plain(message, context))
    return app


def run(grid: MemoryGrid, out: Path, strategy: Any = None, **more: Any) -> list[dict[str, Any]]:
    wrapped = strategy or FedAvg(fraction_evaluate=0.0)
    V = FilteringSet(new_net, X, Y)
    filfl = FilFL(wrapped, k=2, h=1, evaluate=V, out=out, **{"filter": "keep-all", "options": BY_LOGITS, **more})
    filfl.start(grid, initial(), num_rounds=1, timeout=30)
    return list(read_run(out).records)


def recorded(grid: MemoryGrid) -> tuple[dict[int, Any], dict[int, Any]]:
    """Node -> the logits and the weights that leave it."""
    logits: dict[int, Any] = {}
    weights: dict[int, Any] = defaultdict(list)
    for number, node in grid.nodes.items():

        def tamper(reply: Message, number: int = number) -> Message:
            if not reply.has_error():
                for name, arrays in reply.content.array_records.items():
                    if name == LOGITS:
                        logits[number] = arrays["values"].numpy()
                    else:
                        weights[number].append(ArrayRecord(dict(arrays)))
            return reply

        node.tamper = tamper
    return logits, weights


def outputs(arrays: ArrayRecord) -> Any:
    net = new_net()
    net.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        return net(X).numpy()


CASES = {
    "local": lambda: (app_with([keep(), local_dp()]), None),
    "local, of train": lambda: (app_with([keep()], [local_dp()]), None),
    "between other mods": lambda: (app_with([watch, keep(), watch, local_dp(), watch]), None),
    "clipping": lambda: (app_with([keep(), fixedclipping_mod]), CLIP),
    "clipping, of train": lambda: (app_with([watch, keep()], [fixedclipping_mod]), CLIP),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_and_uploads_are_of_what_the_privacy_mod_made(case: str, tmp_path: Path) -> None:
    app, clip = CASES[case]()
    strategy = FedAvg(fraction_evaluate=0.0)
    if clip:
        strategy = DifferentialPrivacyClientSideFixedClipping(strategy, 1e-6, clip, num_sampled_clients=2)
    grid = federation(app)
    logits, weights = recorded(grid)
    [record] = run(grid, tmp_path / "run", strategy)
    assert not record["refused"] and len(record["selected"]) == 2
    assert len(logits) == SITES
    uploads = {node: sent for node, [sent] in weights.items()}
    assert {(node - 1000) // 17 for node in uploads} == set(record["selected"]), "the others send no weights"
    for node, sent in uploads.items():
        change = np.linalg.norm(numbers(sent) - numbers(initial()))
        assert change < CLIP + 0.01, "an update that is not clipped has a norm of more than 0.1"
        np.testing.assert_allclose(logits[node], outputs(sent), atol=1e-5)


def test_updates_are_far_larger_where_no_mod_clips_them(tmp_path: Path) -> None:
    grid = federation(app_with([keep()]))
    _, weights = recorded(grid)
    run(grid, tmp_path / "run")
    assert all(np.linalg.norm(numbers(sent) - numbers(initial())) > 0.1 for [sent] in weights.values())


@pytest.mark.parametrize("app", [app_with([local_dp(), keep()]), app_with([], [local_dp(), keep()])])
def test_a_privacy_mod_before_keep_weights_is_refused_with_advice_and_nothing_leaves(
    app: ClientApp, tmp_path: Path
) -> None:
    grid = federation(app)
    logits, weights = recorded(grid)
    [record] = run(grid, tmp_path / "run")
    assert len(record["refused"]) == SITES
    assert all(
        reason.endswith("List keep_weights before this mod, which must see what is trained, not logits")
        for reason in record["refused"].values()
    )
    assert not logits and not weights


def with_queries(mods: list[Any], of_train: list[Any]) -> ClientApp:
    app = app_with(mods, of_train)
    add_queries(app, lambda context: (new_net(), batches(context)))
    return app


@pytest.mark.parametrize("selection", ["power-of-choice", "divfl"])
def test_queries_work_beside_a_privacy_mod_of_the_train_function(selection: str, tmp_path: Path) -> None:
    grid = federation(with_queries([], [local_dp()]))
    [record] = run(grid, tmp_path / "run", selection=selection, options={})
    assert len(record["selected"]) == 2 and not record["refused"]


@pytest.mark.parametrize("selection", ["power-of-choice", "divfl"])
def test_queries_that_a_privacy_mod_of_the_app_refuses_end_with_advice(selection: str, tmp_path: Path) -> None:
    grid = federation(with_queries([local_dp()], []))
    with pytest.raises(
        RunError, match=r"Move this mod from ClientApp\(mods=\[...\]\) to @app.train\(mods=\[...\]\)"
    ) as error:
        run(grid, tmp_path / "run", selection=selection, options={})
    assert "add_queries" not in str(error.value), "the app has them"
