"""What a FilteringSet takes: DataLoaders, dicts, models of Hugging Face, float64, and models of other frameworks."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from sites import CLASSES, FEATURES, SITES, batches, blobs, federation, initial, new_net, numbers, plain_app
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from filfl.errors import ConfigError, DataError, PluginError
from filfl.flower import FilFL, FilteringSet, add_queries, keep_weights
from filfl.runs import read_run

pytestmark = pytest.mark.usefixtures("single_thread")

BY_LOGITS = {"filter.reward": "ensemble", "filter.transport": "logits"}
X, Y = blobs(0)


def as_dicts(x: torch.Tensor, y: torch.Tensor, inputs: str, target: str) -> list[dict[str, Any]]:
    rows = torch.arange(len(x)).split(15)
    return [{inputs: x[r], target: y[r], "name": ["a text"] * len(r)} for r in rows]


@pytest.mark.parametrize(
    "given",
    [
        DataLoader(TensorDataset(X, Y), batch_size=7),
        TensorDataset(X, Y),
        as_dicts(X, Y, "img", "label"),
        as_dicts(X, Y, "pixels", "labels"),
        [{"input": X, "fine": Y}],
        {"features": X.numpy(), "index": np.arange(len(Y)), "label": Y.numpy()},
        iter([(X.double().numpy(), Y.int())]),
    ],
    ids=["DataLoader", "Dataset", "img", "pixels", "two columns", "one batch", "other types"],
)
def test_samples_in_every_form_give_the_same_loss(given: Any) -> None:
    assert FilteringSet(new_net, given)(initial()) == FilteringSet(new_net, X, Y)(initial())


@pytest.mark.parametrize("kind", ["pandas", "read-only"])
def test_frames_and_read_only_arrays_are_inputs(kind: str) -> None:
    torch.set_warn_always(True)  # otherwise torch warns about read-only arrays only once per process
    try:
        if kind == "pandas":
            pandas = pytest.importorskip("pandas")
            x, y = pandas.DataFrame(X.numpy()), pandas.Series(Y.numpy())
        else:
            x, y = (np.frombuffer(v.numpy().tobytes(), v.numpy().dtype).reshape(v.shape) for v in (X, Y))
        assert FilteringSet(new_net, x, y)(initial()) == FilteringSet(new_net, X, Y)(initial())
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((X,), "has inputs but no targets"),
        (([],), "there is no batch"),
        ((3,), "must be arrays x and y, or batches of both"),
        (([{"a": X, "b": X, "c": Y}],), "has the columns a, b, c, and none is named label"),
        (([{"a": X, "b": X, "label": Y}],), "has the inputs a, b, but the model has no arguments of these names"),
        (([(X, Y, Y)],), r"must be a pair \(inputs, targets\), or a dict with both \(got 3 parts\)"),
        (([(X[:5], Y[:5]), (X[:5, :2], Y[:5])],), r"must have inputs of one shape \(got \[4\] and \[2\] per sample\)"),
        ((X, ["cat"] * len(X)), "number the classes 0, 1, 2"),
        ((["one", "two"], [0, 1]), "the inputs must be numbers"),
        (([(X, Y)], None), None),
    ],
)
def test_samples_that_cannot_be_read_are_errors(given: tuple[Any, ...], error: str | None) -> None:
    if error is None:
        assert len(FilteringSet(new_net, *given)) == len(Y)
        return
    with pytest.raises(DataError, match=error):
        FilteringSet(new_net, *given)


def test_as_many_inputs_as_targets_are_needed() -> None:
    with pytest.raises(PluginError, match="got 39 inputs and 40 targets"):
        FilteringSet(new_net, X[:39], Y)
    with pytest.raises(PluginError, match="got 39 inputs b and 40 targets"):
        FilteringSet.of_function(lambda arrays, x: x, {"a": X.numpy(), "b": X[:39].numpy()}, Y)


# Models of Hugging Face, as in Flower's quickstart with transformers.


TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def classifier(family: str, **sizes: int) -> nn.Module:
    """A tiny model of a family of transformers."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(vocab_size=30, num_labels=CLASSES, **sizes)
    model: nn.Module = getattr(transformers, f"{family}ForSequenceClassification")(config)
    return model.eval()


def bert() -> nn.Module:
    return classifier("Bert", max_position_embeddings=20, **TINY)


def gpt() -> nn.Module:
    return classifier("GPT2", pad_token_id=29, n_positions=20, n_embd=8, n_layer=1, n_head=2)


def llama() -> nn.Module:
    """Its positions are relative, so padding on the left does not change what it returns."""
    return classifier("Llama", pad_token_id=29, **TINY)


def token_batches(site: int, left: bool = False, pad: int = 0) -> list[dict[str, torch.Tensor]]:
    """Batches as DataCollatorWithPadding makes them: each is padded to its own longest sample."""
    rng, made = np.random.default_rng(site), []
    for longest in (6, 11, 9, 7):
        lengths = np.append(rng.integers(3, longest, size=5), longest)
        ids, mask = np.full((6, longest), pad), np.zeros((6, longest), dtype=np.int64)
        labels = rng.integers(CLASSES, size=6)
        for row, length in enumerate(lengths):
            place = slice(longest - length, None) if left else slice(0, length)
            mask[row, place] = 1
            ids[row, place] = 1 + 5 * labels[row] + rng.integers(5, size=length)
        made.append({k: torch.tensor(v) for k, v in (("input_ids", ids), ("attention_mask", mask), ("labels", labels))})
    return made


@pytest.mark.parametrize(("model", "left", "pad"), [(bert, False, 0), (gpt, False, 29), (llama, True, 29)])
def test_batches_of_tokens_are_evaluated_as_they_are_one_by_one(model: Any, left: bool, pad: int) -> None:
    given = token_batches(0, left, pad)
    V = FilteringSet(model, given)
    module = model()
    with torch.no_grad():
        one_by_one = torch.cat([module(**{k: v for k, v in b.items() if k != "labels"}).logits for b in given])
    torch.testing.assert_close(V.outputs([weights_of(V)])[0], one_by_one)


def weights_of(V: FilteringSet) -> Any:
    with V.networks.network() as net:
        return net.weights()


def bert_app() -> ClientApp:
    app = ClientApp(mods=[keep_weights(lambda context: bert())])

    def data(context: Context) -> list[dict[str, torch.Tensor]]:
        return token_batches(1 + int(context.node_config["partition-id"]))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = bert()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data(context):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": 24})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    add_queries(app, lambda context: (bert(), data(context)))
    return app


@pytest.mark.parametrize(
    "more", [{"options": BY_LOGITS}, {"selection": "power-of-choice", "options": {"filter.reward": "ensemble"}}]
)
def test_a_hugging_face_app_is_filtered(more: dict[str, Any], tmp_path: Path) -> None:
    V = FilteringSet(bert, token_batches(0))
    strategy = FilFL(FedAvg(fraction_evaluate=0.0), "prune", k=2, h=1, evaluate=V, out=tmp_path / "run", **more)
    strategy.start(federation(bert_app(), sites=4), ArrayRecord(bert().state_dict()), num_rounds=2, timeout=30)
    for record in read_run(tmp_path / "run").records:
        assert not record["refused"] and record["values"] and len(record["selected"]) == 2


# Models in float64, and models of other frameworks.


def in_float64() -> nn.Module:
    """A network in float64 that also takes the float32 batches of the sites."""
    net = new_net().double()
    net.register_forward_pre_hook(lambda module, x: tuple(each.double() for each in x))
    return net


def filtered(app: ClientApp, V: FilteringSet, arrays: ArrayRecord, out: Path, **more: Any) -> Any:
    strategy = FilFL(FedAvg(fraction_evaluate=0.0), "prune", k=2, h=2, evaluate=V, out=out, **more)
    result = strategy.start(federation(app), arrays, num_rounds=4, timeout=30)
    assert not any(record["refused"] for record in read_run(out).records)
    return result


@pytest.mark.parametrize(
    "options", [{}, {"filter.reward": "average"}, BY_LOGITS], ids=["ensemble", "average", "logits"]
)
def test_a_model_in_float64_is_filtered(options: dict[str, Any], tmp_path: Path) -> None:
    V = FilteringSet(lambda: new_net().double(), X, Y)
    assert V.outputs([weights_of(V)])[0].dtype == torch.float64
    app = plain_app(in_float64, ClientApp(mods=[keep_weights(lambda context: in_float64())]))
    result = filtered(app, V, initial(in_float64), tmp_path / "run", options=options)
    assert {array.dtype for array in result.arrays.values()} == {"float64"}
    valued = [len(record["values"]) for record in read_run(tmp_path / "run").records if record["did_filter"]]
    assert valued and set(valued) == ({0} if options == {"filter.reward": "average"} else {SITES})


def logits(arrays: list[Any], x: Any) -> Any:
    """What a user of scikit-learn writes: the decision function of a multinomial logistic regression."""
    coefficients, intercept = arrays
    return x @ coefficients.T + intercept


def regression(arrays: list[Any]) -> LogisticRegression:
    """As in Flower's quickstart with scikit-learn."""
    model = LogisticRegression(max_iter=3, warm_start=True)
    model.classes_ = np.arange(CLASSES)
    model.coef_, model.intercept_ = arrays
    return model


def regression_app(mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = regression(message.content["arrays"].to_numpy_ndarrays())
        x = np.concatenate([batch["img"] for batch in batches(context)]).astype(np.float64)
        y = np.concatenate([batch["label"] for batch in batches(context)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # three iterations do not converge
            model.fit(x, y)
        content = {
            "arrays": ArrayRecord([model.coef_, model.intercept_]),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def zeros() -> ArrayRecord:
    return ArrayRecord([np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)])


def test_a_scikit_learn_app_is_filtered_by_every_transport(tmp_path: Path) -> None:
    x, y = X.numpy().astype(np.float64), Y.numpy()
    V = FilteringSet.of_function(logits, x, y)
    assert V(zeros()) == pytest.approx(np.log(CLASSES))
    results = {
        name: filtered(regression_app([keep_weights(logits=logits)]), V, zeros(), tmp_path / name, options=options)
        for name, options in (("models", {}), ("logits", BY_LOGITS), ("part", {**BY_LOGITS, "filter.part": 30}))
    }
    models, logit_records, _ = (read_run(tmp_path / name).records for name in results)
    for key in ("filtered", "selected", "did_filter"):
        assert [record[key] for record in models] == [record[key] for record in logit_records]
    assert all(len(record["values"]) == SITES for record in models if record["did_filter"])
    kept = [set(record["filtered"]) for record in models if record["did_filter"]]
    assert all(len(each) > 0 and each <= {0, 2, 4} for each in kept), "the sites with odd numbers have wrong labels"
    np.testing.assert_allclose(numbers(results["logits"].arrays), numbers(results["models"].arrays), rtol=1e-12)
    final = regression(results["models"].arrays.to_numpy_ndarrays())
    assert final.score(x, y) > 0.8
    assert V(results["models"].arrays) == pytest.approx(-np.log(final.predict_proba(x)[range(len(y)), y]).mean())


def test_a_function_is_given_its_inputs_as_they_are_and_cannot_change_the_arrays() -> None:
    seen: list[Any] = []

    def greedy(arrays: list[Any], x: Any) -> Any:
        seen.append((type(x["pixels"]), x["pixels"].dtype, x["mask"].dtype, len(x["pixels"])))
        z = x["pixels"] @ arrays[0]
        arrays[0] *= 2
        return z.astype(np.float16)

    x = {"pixels": np.full((130, 2), 3, dtype=np.uint8), "mask": np.ones(130, dtype=bool)}
    V = FilteringSet.of_function(greedy, x, np.zeros(130, dtype=np.int32))
    arrays = ArrayRecord({"layers.0.kernel": Array(np.diag(np.float32([1, 2]))), "layers.0.steps": Array(np.array(7))})
    assert V(arrays) == V(arrays) == pytest.approx(np.log(1 + np.exp(3)))
    assert set(seen) == {(np.ndarray, np.dtype(np.uint8), np.dtype(bool), m) for m in (100, 30)}


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda arrays, x: x @ arrays[0][0], r"return numpy.stack\(\[-z / 2, z / 2\], axis=1\)"),
        (lambda arrays, x: x[:3], r"one row per sample and one column per class, \[40, classes\] \(got \[3, 4\]\)$"),
        (lambda arrays, x: None, r"must return an array of numbers \(got NoneType\)"),
        (lambda arrays, x: x @ arrays[0], "cannot be evaluated with the initial arrays: ValueError"),
        (lambda arrays, x: np.zeros((len(x), 2)), "cannot be evaluated with the initial arrays: IndexError"),
    ],
    ids=["one score", "too few rows", "nothing", "raises", "too few classes"],
)
def test_a_function_that_does_not_fit_is_an_error_before_anybody_trains(function: Any, error: str) -> None:
    grid = federation()
    strategy = FilFL(FedAvg(), "prune", k=2, evaluate=FilteringSet.of_function(function, X.numpy(), Y.numpy()))
    with pytest.raises(PluginError, match=error):
        strategy.start(grid, zeros(), num_rounds=1)
    assert not any("train" in node.asked for node in grid.nodes.values())


def test_keep_weights_needs_a_model_or_a_function() -> None:
    for given in ({}, {"model": lambda context: new_net(), "logits": logits}):
        with pytest.raises(ConfigError, match="keep_weights needs either model"):
            keep_weights(**given)


def test_a_network_instead_of_its_class_is_refused() -> None:
    with pytest.raises(PluginError, match=r"pass Linear instead of Linear\(...\)"):
        FilteringSet(new_net(), *blobs(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("softmax", [True, False])
def test_probabilities_in_place_of_logits_are_warned_about(softmax: bool, caplog: pytest.LogCaptureFixture) -> None:
    def logits(arrays: list[Any], x: Any) -> Any:
        z = x @ arrays[0].T + arrays[1]
        p = np.exp(z - z.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True) if softmax else z

    x, y = blobs(0)
    V = FilteringSet.of_function(logits, x.numpy(), y.numpy())
    FilFL(FedAvg(fraction_evaluate=0.0), k=2, evaluate=V, out=None).start(federation(), initial(), num_rounds=1)
    warned = [record.getMessage() for record in caplog.records if "are probabilities" in record.getMessage()]
    assert len(warned) == softmax
