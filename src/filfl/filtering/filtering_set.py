"""The filtering set V: its samples, the networks that are evaluated on them, and the loss."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from filfl.core.clients import Failure
from filfl.data.batches import Inputs, read_samples
from filfl.errors import FilflError, PluginError
from filfl.evaluation import GivenSamples, Loss, Samples, cross_entropy, mean_loss, outputs, sample_losses
from filfl.filtering.function_model import FunctionModel, Logits
from filfl.filtering.half_precision import HalfPrecision, Precision, pays
from filfl.filtering.networks import Networks, how_many
from filfl.filtering.rewards import Judgement, SampleJudgement
from filfl.system import num_cores, pick_device
from filfl.weights import FlatModel, Layout, Mismatch, Weights


class FilteringSet:
    """The server's filtering set V.

    model: a function that makes the network, such as its class. The network returns its outputs, or an object that has
    them as `logits`, as the models of Hugging Face do.
    x, y: inputs and targets, as arrays or tensors. x may be a dict of inputs that the network takes by name. Without y,
    x has both: batches, such as a DataLoader, of pairs (inputs, targets) or dicts; or a dataset of such samples.
    loss: (outputs, targets) -> mean loss over the batch. device: "auto", "cpu", "cuda", ...
    scale, shift: inputs of type uint8, such as pixels, become x * scale + shift.
    precision: that of the evaluations of greedy filters, as `execution.precision` of a simulation.

    `FilteringSet.of_function` is for models of other frameworks.
    """

    class_names: tuple[str, ...] = ()
    """The names of the classes 0, 1, ..., for the warnings; empty if they have none."""
    _function: Logits | None = None
    """The function of a model of another framework, whose arrays are not known before the run."""
    _net: FlatModel | None = None

    def __init__(
        self,
        model: Callable[[], nn.Module],
        x: Any,
        y: Any = None,
        loss: Loss = cross_entropy,
        device: str = "auto",
        scale: Any = 1.0,
        shift: Any = 0.0,
        precision: Precision = "auto",
    ) -> None:
        where = pick_device(device)
        if isinstance(model, nn.Module):
            name = type(model).__name__
            raise PluginError(f"model must be a function that makes the network; pass {name} instead of {name}(...)")
        net = FlatModel(model(), where)
        dtype = net.layout.dtype

        def placed(values: Tensor) -> Tensor:
            return values.to(where, dtype) if values.is_floating_point() else values.to(where)

        inputs, targets = _samples(x, y, net.module)
        targets = placed(targets)
        if isinstance(inputs, dict):
            named = {name: placed(values) for name, values in inputs.items()}
            samples: Samples = GivenSamples.of(named, targets)
        else:
            factors = (torch.as_tensor(factor, dtype=dtype, device=where) for factor in (scale, shift))
            samples = Samples(placed(inputs), targets, *factors).aligned()
        self._set(net, lambda: FlatModel(model(), where), samples, loss, num_cores(), precision)

    @classmethod
    def of_function(cls, logits: Logits, x: Any, y: Any, loss: Loss = cross_entropy) -> "FilteringSet":
        """A filtering set for a model of JAX, Keras, scikit-learn or any other framework.

        logits: a function (arrays, x) -> logits [m, classes], all of numpy. `arrays` are those of the model, as from
        `ArrayRecord.to_numpy_ndarrays()`. x: the inputs, an array or a dict of arrays, which the function is given as
        they are, a part of the samples at a time. y: the class of each sample, 0, 1, ...
        """
        made = cls.__new__(cls)
        made._function, made.loss_function = logits, loss
        made.samples = GivenSamples.of(*_samples(x, y, None))
        return made

    def fitted(self, arrays: Mapping[str, Any]) -> Layout:
        """The layout of the model. A function of another framework has that of these arrays, and is tried with them."""
        if self._function is not None:
            logits, named = self._function, {name: np.asarray(_tensor(array)) for name, array in arrays.items()}
            net = FlatModel(FunctionModel(logits, named), torch.device("cpu"))
            self._set(net, None, self.samples, self.loss_function, 1, "float32")  # it may not be safe in threads
            try:
                self.loss(net.weights())
            except FilflError:
                raise
            except Exception as error:
                raise PluginError(
                    f"the filtering set cannot be evaluated with the initial arrays: {type(error).__name__}: {error}"
                ) from error
        return self.layout

    @classmethod
    def of(
        cls,
        net: FlatModel,
        samples: Samples,
        loss: Loss,
        build: Callable[[], FlatModel] | None = None,
        workers: int = 1,
        class_names: tuple[str, ...] = (),
        precision: Precision = "float32",
    ) -> "FilteringSet":
        """A filtering set of samples that are on the device of `net`; `build` makes another network like it."""
        made = cls.__new__(cls)
        made.class_names = class_names
        made._set(net, build, samples, loss, workers if build else 1, precision)
        return made

    def _set(
        self,
        net: FlatModel,
        build: Callable[[], FlatModel] | None,
        samples: Samples,
        loss: Loss,
        workers: int,
        precision: Precision,
    ) -> None:
        self.samples, self.loss_function, self.layout = samples, loss, net.layout
        self._net = net
        self.networks = Networks(net, build, how_many(net, len(samples), workers))
        self._precision = precision

    @cached_property
    def _half(self) -> HalfPrecision | None:
        """The network in half precision, where that is wanted and possible."""
        assert self._net is not None
        if not pays(self._precision, self._net, len(self)):
            return None
        try:
            return HalfPrecision(self._net, self.samples, self.loss_function, self.networks.at_once)
        except Exception as error:  # the network is the user's
            if self._precision == "auto":
                return None
            raise PluginError(
                f'execution.precision = "bfloat16" is not possible with this network: {type(error).__name__}: {error}'
            ) from error

    def __len__(self) -> int:
        return len(self.samples)

    def __call__(self, arrays: Mapping[str, Any]) -> float:
        """The loss of a model by its named arrays: a state dict, or Flower's ArrayRecord."""
        layout = self.fitted(arrays) if self._net is None else self.layout
        try:
            weights = layout.flatten({name: _tensor(array) for name, array in arrays.items()})
        except Mismatch as reason:
            raise PluginError(f"the arrays do not fit the network of the filtering set: {reason}") from None
        return self.loss(weights)

    def loss(self, weights: Weights) -> float:
        """F_V(w) = 1/m sum_j l(w; x_j)."""
        with self.networks.network() as net:
            return mean_loss(net, weights, self.samples, self.loss_function)

    def judgement(self, w_t: Weights, rows: NDArray[np.int64] | None = None) -> Judgement:
        """Judges sets by their loss on V, or on some rows of it; integer buffers are those of w_t."""
        samples = self.samples if rows is None else self.samples.at(torch.from_numpy(rows))

        def loss(vector: Tensor) -> float:
            with self.networks.network() as net:
                return mean_loss(net, Weights(vector, w_t.integers), samples, self.loss_function)

        def losses(vector: Tensor) -> Tensor:
            with self.networks.network() as net:
                z = outputs(net, Weights(vector, w_t.integers), samples)
            return sample_losses(self.loss_function, z, samples.y)

        by_sample = SampleJudgement(len(samples), losses, on=lambda rows: self.judgement(w_t, rows))
        half = self._half
        in_half = Judgement(half.loss_of(w_t.integers, rows), at_once=half.at_once, each=half.each) if half else None
        return Judgement(
            loss, at_once=self.networks.at_once, each=self.networks.each, samples=by_sample, in_half=in_half
        )

    def outputs(self, weights: Sequence[Weights], samples: Samples | None = None) -> list[Tensor]:
        """The outputs of each of these models on V, or on the given samples."""

        def run(each: Weights) -> Tensor:
            with self.networks.network() as net:
                return outputs(net, each, self.samples if samples is None else samples)

        return self.networks.each(run, weights)

    def gives_probabilities(self, weights: Weights) -> bool:
        """Whether every output of this model on V is a distribution over two or more classes, as after a softmax."""
        if self.loss_function is not cross_entropy:
            return False
        z = self.outputs([weights])[0]
        sums_to_one = (z.sum(dim=-1) - 1).abs() < 1e-3
        return z.dim() > 1 and z.shape[-1] > 1 and bool((sums_to_one.all() & (z >= 0).all()).item())

    def outputs_or_failures(self, weights: Sequence[Weights], samples: Samples) -> list[Tensor | Failure]:
        """As `outputs`, with a `Failure` for weights with which the model raises."""

        def run(each: Weights) -> Tensor | Failure:
            try:
                with self.networks.network() as net:
                    return outputs(net, each, samples)
            except Exception as error:
                return Failure(f"the model raised {type(error).__name__} on V: {error}")

        return self.networks.each(run, weights)

    def loss_of_outputs(self, z: Tensor, rows: Tensor | None = None) -> float:
        """The loss of outputs on V, or on some rows of it."""
        return float(self.loss_function(z, self.targets(rows)))

    def targets(self, rows: Tensor | None = None) -> Tensor:
        y = self.samples.y
        return y if rows is None else y[rows.to(y.device)]

    def output_shape(self) -> tuple[int, ...]:
        """The shape of the model's outputs for one sample."""
        with self.networks.network() as net:
            return tuple(outputs(net, net.weights(), self.samples.part(0, 1)).shape[1:])

    def public(self) -> tuple[Samples, str]:
        """V without its targets, and its digest: a hash of the inputs and of how bytes become numbers."""
        V, digest = self.samples.without_targets(), hashlib.sha256()
        for name, part in V.arrays().items():
            part = part.cpu().contiguous()
            digest.update(f"{name} {part.dtype} {list(part.shape)} ".encode() + part.numpy().tobytes())
        return V, digest.hexdigest()

    def state(self, weights: Weights) -> dict[str, Tensor]:
        """The complete model with these weights: its `state_dict`, with the frozen parameters of V's network."""
        assert self._net is not None
        return self._net.state(weights)

    def close(self) -> None:
        self.networks.close()
        if half := self.__dict__.get("_half"):
            half.close()


def _samples(x: Any, y: Any, module: nn.Module | None) -> tuple[Inputs, Tensor]:
    inputs, targets = read_samples(x, y, module, "the filtering set")
    for name, values in inputs.items() if isinstance(inputs, dict) else [("", inputs)]:
        if len(values) != len(targets) or not len(targets):
            raise PluginError(
                f"the filtering set needs at least one sample, and as many inputs as targets "
                f"(got {len(values)} inputs{f' {name}' if name else ''} and {len(targets)} targets)"
            )
    return inputs, targets


def _tensor(array: Any) -> Any:
    return array if isinstance(array, Tensor) else array.numpy()
