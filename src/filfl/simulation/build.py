"""The parts of a simulated run: data, network, test, clients and server."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from filfl.aggregation import ServerSide
from filfl.config.config import Config
from filfl.config.schema import unknown_name
from filfl.config.sections import Training
from filfl.core.metering import logit_reply_bytes, update_bytes
from filfl.core.server import Server, State
from filfl.data import FederatedData
from filfl.data.filter_file import with_filter_file
from filfl.data.ridge import LeastSquares
from filfl.errors import ConfigError, DataError, PluginError
from filfl.evaluation import (
    Augment,
    ClientAccuracies,
    Loss,
    Metric,
    Samples,
    accuracy,
    by_client,
    cross_entropy,
    mean_loss,
    mean_squared_error,
    outputs,
    score,
)
from filfl.filtering.by_logits import ByLogits
from filfl.filtering.filtering_set import FilteringSet
from filfl.rng import SETUP, stream, torch_seeded
from filfl.runs.client_table import ClientTable
from filfl.runs.files import to_json
from filfl.runs.make_server import make_server
from filfl.runs.metrics import ATTACK_SUCCESS, GLOBAL_TRAIN_LOSS, LOSS, MEASURED
from filfl.runs.summary import CLIENT_TESTS
from filfl.simulation.executors.open import open_clients
from filfl.simulation.executors.serial import LocalTraining, samples_on
from filfl.simulation.training_on_v import TrainingOnV
from filfl.simulation.wrappers.logit_cache import LogitCache
from filfl.system import num_cores, pick_device
from filfl.weights import FlatModel, Weights

CLIENT_DATA = {"variable": "validation", "federated": "training"}
"""Which samples of the clients are the filtering set."""


@dataclass(frozen=True)
class Parts:
    """What stays the same over the rounds of a simulated run."""

    config: Config
    data: FederatedData
    build: Callable[[], FlatModel]
    """Makes a network with the initial weights w_1."""
    net: FlatModel
    start: State
    loss: Loss
    metrics: Mapping[str, Metric]
    augment: Augment | None
    V: Samples
    test_set: Samples
    train_set: Samples | None
    """The samples of evaluate.train_samples; None if it is 0."""
    triggered: Samples | None
    """Test samples with the trigger of an attack, and the labels that the attackers want for them."""
    problem: LeastSquares | None
    """The optimisation problem, where its optimum is known."""

    def test(self, t: int, w: Weights) -> dict[str, Any]:
        """The test results of the model w, for the record of round t."""
        test_loss, scores = score(self.net, w, self.test_set, self.loss, self.metrics)
        if self.problem:
            scores["distance"] = self.problem.distance(w.vector.cpu())
        if self.train_set:
            scores[GLOBAL_TRAIN_LOSS] = mean_loss(self.net, w, self.train_set, self.loss)
        if self.triggered:
            scores[ATTACK_SUCCESS] = accuracy(outputs(self.net, w, self.triggered), self.triggered.y)
        return {"test_accuracy": scores.get("accuracy"), "test_loss": test_loss, "metrics": scores}

    def sets(self) -> dict[str, str]:
        """Whose samples the model is tested and filtered with, for the summary."""
        data, options = self.data, self.config.filter
        sets = {"test_set": f"{len(self.test_set):,} {data.origin(data.test_from)}"}
        if not options.judged_by_clients and (options.method or self.config.aggregation.uses_V):
            sets["filtering_set"] = f"{len(self.V):,} {data.origin(data.filter_from)}"
        elif options.method:
            whose = data.origin("trusted" if data.trusted else "clients").removeprefix("held-out ")
            sets["filtering_set"] = f"{CLIENT_DATA[options.data]} {whose}"
        return sets

    def tested_clients(self, w: Weights) -> dict[str, Any]:
        """The accuracy of w on the test samples of each client, for the summary; empty if no sample has a client."""
        accuracies = ClientAccuracies(self.data.test_clients)
        if not self.data.classes or len(accuracies.clients) == 0:
            return {}
        found = accuracies(outputs(self.net, w, self.test_set), self.test_set.y)
        lists = {"id": accuracies.clients, "samples": accuracies.samples, "accuracy": found}
        return {CLIENT_TESTS: {name: values.tolist() for name, values in lists.items()}}

    def constants(self) -> dict[str, float]:
        """The constants of Section 4, where F is known, for the summary."""
        return self.problem.terms() if self.problem else {}

    def client_table(self) -> ClientTable:
        """Names, sizes and faults of the clients."""
        return ClientTable.of(self.data, self.config)

    def fingerprint(self) -> str:
        """Identifies the run, as far as that is possible: functions given from Python are not compared."""
        layout = [(e.name, e.shape, str(e.dtype)) for e in self.net.layout.entries]
        initial = hashlib.sha256(self.start.w.vector.cpu().numpy().tobytes())
        for frozen in self.net.frozen:
            initial.update(frozen.cpu().flatten().view(torch.uint8).numpy().tobytes())
        identity = [self.config.identity(), self.data.fingerprint(), layout, initial.hexdigest()]
        text = to_json([*identity, self.net.device.type])
        return hashlib.sha256(text.encode()).hexdigest()


def make_parts(
    config: Config,
    loss: Loss | None,
    metrics: Mapping[str, Metric] | None,
    say: Callable[[str], None],
    augment: Augment | None = None,
) -> Parts:
    """Load the data, build the network, and check that they fit together."""
    data = config.data.load(config.seed)
    if config.filter.path is not None:
        data = with_filter_file(data, config.filter.path)
    config.check_against(data)
    data = config.attack.poisoned(data, config.seed)
    make = partial(config.model.build, data.sample_shape, data.classes)
    build = partial(network, make, config.seed, pick_device(config.execution.device))
    net = build()
    built_in = {"accuracy": accuracy, **by_client(data.test_clients)} if data.classes else {}
    filter_data = data.with_filter_size(
        config.filter.size, None if config.filter.fixed else config.seed, config.filter.classes
    )
    parts = Parts(
        config=config,
        data=data,
        build=build,
        net=net,
        start=State(net.weights()),
        loss=loss or (cross_entropy if data.classes else mean_squared_error),
        metrics={**built_in, **own_metrics(config, metrics or {})},
        augment=augment or config.training.augmentation(),
        V=samples_on(net, data, filter_data.filter_x, filter_data.filter_y).aligned(),
        test_set=samples_on(net, data, data.test_x, data.test_y).aligned(),
        train_set=_train_set(config, data, net),
        triggered=_triggered(config, data, net),
        problem=_known_problem(config, data, say) if loss is None else None,
    )
    _test_once(parts)
    if parts.augment:
        _augment_once(parts, parts.augment)
    return parts


def own_metrics(config: Config, given: Mapping[str, Metric]) -> dict[str, Metric]:
    """The user's metrics: those that the config names, and those given from Python."""
    for name, metric in given.items():
        if not isinstance(name, str) or not callable(metric):
            raise PluginError("metrics must be functions (outputs, targets) -> number by name, such as {'f1': f1}")
    metrics = {**config.evaluate.functions(), **given}
    if taken := [name for name in metrics if name in (LOSS, ATTACK_SUCCESS, *MEASURED)]:
        raise PluginError(f"a metric cannot have the name {taken[0]}, which filfl measures itself; rename it")
    return metrics


@contextmanager
def open_server(parts: Parts, say: Callable[[str], None]) -> Iterator[Server]:
    """The server and its simulated clients, for the duration of a run."""
    net, loss, build = parts.net, parts.loss, parts.build
    workers = parts.config.execution.workers or num_cores()
    with (
        closing(
            FilteringSet.of(
                net, parts.V, loss, build, workers, parts.data.class_names, parts.config.execution.precision
            )
        ) as V,
        ExitStack() as opened,
    ):
        faulty = frozenset(np.flatnonzero(parts.client_table().noisy).tolist())
        server_side = ServerSide(net.layout.num_trained, TrainingOnV(V, LocalTraining.of(parts.config, parts.augment)))
        config = replace(
            parts.config,
            filter=parts.config.filter.knowing(faulty),
            aggregation=parts.config.aggregation.on(server_side),
        )
        opening = open_clients(config, parts.data, net, loss, build, workers, say, parts.augment, parts.V)
        clients = opened.enter_context(opening)
        server = make_server(
            config,
            LogitCache(clients, V),
            net.layout,
            V,
            problem=parts.problem,
            V_from_clients=parts.data.filter_from == "clients",
            trusted=(lambda: parts.data.trusted) if parts.data.trusted else None,
            faulty=faulty,
        )
        if isinstance(server.filter_round, ByLogits) and (warning := logits_cost_more(parts, server.filter_round)):
            say(warning)
        yield server


def network(make: Callable[[], nn.Module], seed: int, device: torch.device) -> FlatModel:
    """The network with its initial weights w_1, which depend on the seed alone."""
    with torch_seeded(stream(seed, SETUP, "initial-weights"), device):
        if isinstance(make, nn.Module):
            raise PluginError("model must be a function that makes a new module; write model=lambda: nn.Linear(8, 3)")
        try:
            module = make()
        except (RuntimeError, MemoryError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PluginError(f"the model cannot be built: {reason}") from error
        if not isinstance(module, nn.Module):
            raise PluginError(f"model must be a function that makes an nn.Module (got {type(module).__name__})")
        return FlatModel(module, device)


def logits_cost_more(parts: Parts, by_logits: ByLogits) -> str | None:
    """A warning where the logits transport sends more in a filter round than models would; None otherwise."""
    config, available = parts.config, parts.config.availability.most_available(parts.data.num_clients)
    n = min(available, config.filter.cap or available)
    m = min(config.filter.part or len(parts.V), len(parts.V))
    K = min(config.selection.k, n)
    model = update_bytes(parts.net.layout) / 1e6
    logits = logit_reply_bytes(by_logits.encoding, (m, *by_logits.output_shape)) / 1e6
    if n * logits + K * model <= n * model:
        return None
    return (
        f'filter.transport = "logits" sends more than "models" here: {n * logits + K * model:.3g} MB per filter round '
        f"({n} times {logits:.3g} MB of logits and {K} models of {model:.3g} MB) instead of {n * model:.3g} MB "
        f"({n} models); set filter.precision, filter.part or filter.top, or lower filter.size"
    )


def _train_set(config: Config, data: FederatedData, net: FlatModel) -> Samples | None:
    """Training samples of all clients, each drawn with the same probability and with the label that its client has."""
    wanted = config.evaluate.train_samples
    if not wanted:
        return None
    ends = np.cumsum(data.num_train)  # the training samples of all clients are numbered one client after the other
    total = int(ends[-1])
    drawn = stream(config.seed, SETUP, "train-samples").choice(total, min(wanted, total), replace=False)
    drawn.sort()
    client = np.searchsorted(ends, drawn, side="right")
    rows = data.train_ends[client] - (ends[client] - drawn)
    return samples_on(net, data, data.x[rows], data.y[rows]).aligned()


def _triggered(config: Config, data: FederatedData, net: FlatModel) -> Samples | None:
    triggered = config.attack.triggered(data)
    if triggered is None:
        return None
    wanted = np.full(len(triggered.x), triggered.target, dtype=np.int64)
    return samples_on(net, data, triggered.x, wanted).aligned()


def _known_problem(config: Config, data: FederatedData, say: Callable[[str], None]) -> LeastSquares | None:
    try:
        problem = config.data.known_problem(data, config.model, config.training.weight_decay)
    except DataError as error:
        say(f"the distance to the optimum is not measured: {error}")
        return None
    if problem and (warning := beta_too_small(config.training, int(data.num_train.min()), problem.mu)):
        say(warning)
    return problem


def beta_too_small(training: Training, num_samples: int, mu: float) -> str | None:
    """A warning where the step size falls too fast for Theorem 1; None otherwise.

    The theorem needs eta_t = beta / t with beta >= 1/mu, where t counts SGD steps. Here t counts rounds: E steps per
    round with beta / t are, in steps, E beta / t. `num_samples`: of the client with the fewest steps.
    """
    E = training.steps or (training.epochs or 1) * -(-num_samples // training.batch)
    if training.schedule != "inverse" or (training.beta or 1.0) * E * mu >= 1:
        return None
    return (
        f"training.beta is below 1 / (mu E) = {1 / (mu * E) if mu else math.inf:.3g} with mu = {mu:.3g} and E = {E} "
        f"steps per round (got {training.beta}), so the distance to the optimum need not fall as 1/t; raise it"
    )


def _test_once(parts: Parts) -> None:
    """Test the initial model, so that a model that does not fit the data is reported before the first round."""
    batch, _ = next(parts.test_set.chunks())
    try:
        tested = parts.test(0, parts.start.w)
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(
            f"the model or the loss does not fit the data (a batch of "
            f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape)}): {type(error).__name__}: {error}"
        ) from error
    known, primary = [LOSS, *tested["metrics"]], parts.config.evaluate.primary
    if primary is not None and primary not in known:
        raise ConfigError(unknown_name("evaluate.primary", primary, known))


def _augment_once(parts: Parts, augment: Augment) -> None:
    """Change one batch, so that a function that does not fit the data is reported before the first round."""
    if not callable(augment):
        raise PluginError(f"augment must be a function (x, rng) -> x (got {type(augment).__name__})")
    first = np.arange(min(parts.config.training.batch, parts.data.num_train[0])) + parts.data.offsets[0]
    samples = samples_on(parts.net, parts.data, parts.data.x[first], parts.data.y[first])
    rng = stream(parts.config.seed, SETUP, "augment")
    try:
        with torch_seeded(rng, parts.net.device):
            samples.augmented(augment, rng).batch(torch.arange(len(samples)))
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"augment does not fit the data: {type(error).__name__}: {error}") from error
