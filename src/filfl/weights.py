"""What is sent of a model's state, as one flat vector, and back.

Filtering, checking and averaging are arithmetic on vectors. Names and shapes matter only where a model is evaluated
or sent. Which entries of a `state_dict` are part of the weights:

parameters with requires_grad    first, so `vector[:num_trained]` is what SGD changes
floating-point buffers           then, because training changes some of them (BatchNorm statistics); averaged too
integer and boolean buffers      in a second vector, because they cannot be averaged
frozen parameters                never: every network has them, and they stay the same

So a frozen parameter is not sent, counted, checked, averaged, checkpointed or held per client. It is stored once, in
the complete model of a finished run (`FlatModel.state`). A tensor that must not be trained, but changes, is a buffer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from filfl.errors import PluginError

SEND_TRAINED = "on Flower, send filfl.flower.get_trained(model) instead of model.state_dict()"


class Mismatch(Exception):
    """A state that does not have this layout. The message names the first difference."""


@dataclass(frozen=True)
class Weights:
    """What is sent of a model: its floating-point entries as a vector [d], its integer buffers as a vector [q]."""

    vector: Tensor
    integers: Tensor


@dataclass(frozen=True)
class Entry:
    """The range of one named tensor: `start` to `stop` in the vector, or in the integers."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int

    @property
    def integer(self) -> bool:
        return not self.dtype.is_floating_point

    def of(self, weights: Weights) -> Tensor:
        """This entry's part of the weights, as a view if the dtype allows it."""
        flat = weights.integers if self.integer else weights.vector
        return flat[self.start : self.stop].view(self.shape).to(self.dtype)


@dataclass(frozen=True)
class Layout:
    """The names, shapes and dtypes of what is sent of a model's state, in the order of its `state_dict`."""

    entries: tuple[Entry, ...]
    num_trained: int
    num_floats: int
    num_integers: int
    dtype: torch.dtype
    frozen: frozenset[str] = frozenset()
    """The names of the frozen parameters, which are not sent."""

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        state = module.state_dict(keep_vars=True)
        for name, value in state.items():
            if is_lazy(value):
                raise PluginError(f"the model's {name} has no shape; run one batch through the model in its factory")
            if not isinstance(value, Tensor) or value.is_complex():
                raise PluginError(f"the model's state {name} must be a real tensor (got {type(value).__name__})")
        frozen = frozenset(name for name, value in state.items() if is_frozen(value))
        sent = {name: value for name, value in state.items() if name not in frozen}
        if not any(value.requires_grad for value in sent.values()):
            raise PluginError("the model has no parameter with requires_grad = True, so there is nothing to train")
        dtypes = {value.dtype for value in sent.values() if value.is_floating_point()}
        if len(dtypes) != 1:
            found = ", ".join(sorted(str(d) for d in dtypes))
            raise PluginError(f"the model's floating-point weights must have the same dtype (got {found})")

        # Tied weights appear under several names, which share one range of the vector.
        tensors = list({id(value): value for value in sent.values()}.values())
        trained = [value for value in tensors if value.requires_grad]
        buffers = [value for value in tensors if value.is_floating_point() and not value.requires_grad]
        integers = [value for value in tensors if not value.is_floating_point()]
        ranges: dict[int, tuple[int, int]] = {}
        for group in ([*trained, *buffers], integers):
            ends = accumulate((value.numel() for value in group), initial=0)
            ranges |= {id(value): limits for value, limits in zip(group, pairwise(ends), strict=True)}
        num_trained, num_buffers, num_integers = (sum(v.numel() for v in g) for g in (trained, buffers, integers))
        entries = [Entry(name, tuple(value.shape), value.dtype, *ranges[id(value)]) for name, value in sent.items()]
        return cls(tuple(entries), num_trained, num_trained + num_buffers, num_integers, dtypes.pop(), frozen)

    @property
    def trained(self) -> list[Entry]:
        """The entries of the trained parameters, in the order of the vector; tied ones once."""
        trained = {(e.start, e.stop): e for e in reversed(self.entries) if not e.integer and e.stop <= self.num_trained}
        return [trained[key] for key in sorted(trained)]

    def views(self, stack: Tensor) -> list[Tensor]:
        """Split trained parameters [..., num_trained] into one view [..., *shape] per entry of `trained`."""
        sizes = [entry.stop - entry.start for entry in self.trained]
        parts = zip(self.trained, torch.split(stack, sizes, dim=-1), strict=True)
        return [part.view(*stack.shape[:-1], *entry.shape) for entry, part in parts]

    @property
    def num_bytes(self) -> int:
        """The size of the weights in a message, without the overhead of the transport."""
        sizes = {(e.integer, e.start): (e.stop - e.start) * e.dtype.itemsize for e in self.entries}
        return sum(sizes.values())

    def flatten(self, state: Mapping[str, Any]) -> Weights:
        """Convert named tensors to weights. Raises `Mismatch` if keys, shapes or dtypes differ from this layout."""
        names = {entry.name for entry in self.entries}
        if missing := sorted(names - state.keys()):
            raise Mismatch(f"key {missing[0]} is missing")
        if frozen := sorted(self.frozen & state.keys()):
            raise Mismatch(f"key {frozen[0]} is a frozen parameter, which is not sent; {SEND_TRAINED}")
        if unexpected := sorted(map(str, state.keys() - names)):
            raise Mismatch(f"key {unexpected[0]} is not in the model")
        weights = self.empty()
        for entry in self.entries:
            value = torch.as_tensor(state[entry.name])
            if tuple(value.shape) != entry.shape:
                raise Mismatch(f"{entry.name} has shape {tuple(value.shape)} instead of {entry.shape}")
            if value.dtype != entry.dtype:
                raise Mismatch(f"{entry.name} has dtype {value.dtype} instead of {entry.dtype}")
            flat = weights.integers if entry.integer else weights.vector
            flat[entry.start : entry.stop] = value.detach().reshape(-1)
        return weights

    def unflatten(self, weights: Weights) -> dict[str, Tensor]:
        """Convert weights to the part of a `state_dict` that is sent."""
        return {entry.name: entry.of(weights) for entry in self.entries}

    def empty(self, device: torch.device | None = None) -> Weights:
        return Weights(
            vector=torch.zeros(self.num_floats, dtype=self.dtype, device=device),
            integers=torch.zeros(self.num_integers, dtype=torch.int64, device=device),
        )


def is_frozen(value: Tensor) -> bool:
    """Whether an entry of `state_dict(keep_vars=True)` is a frozen parameter."""
    return isinstance(value, nn.Parameter) and not value.requires_grad


class FlatModel:
    """A module whose weights are views into one flat vector, so that loading them is one copy. Frozen parameters stay
    where the module has them."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self.device = device
        self.layout = Layout.of(module)
        self._weights = self.layout.empty(device)
        state = module.state_dict(keep_vars=True)
        persistent = {id(value) for value in state.values()}
        # Non-persistent buffers must not carry anything from one client to the next.
        self._scratch = [(b, b.clone()) for b in module.buffers() if id(b) not in persistent]
        for entry in self.layout.entries:
            if not entry.integer:
                view = entry.of(self._weights)
                view.copy_(state[entry.name].detach())
                state[entry.name].data = view
        self._integer_buffers = [(entry, state[entry.name]) for entry in self.layout.entries if entry.integer]
        self.trained: list[Tensor] = [state[entry.name] for entry in self.layout.trained]
        """The trained parameters, in the order of the vector."""
        self._frozen = list({id(value): (name, value) for name, value in state.items() if is_frozen(value)}.values())
        for _, value in self._frozen:
            value.data = value.data.contiguous()  # as copies are: the last bit of a product can depend on the strides
        self._unchanged = self._versions()

    @property
    def frozen(self) -> list[Tensor]:
        """The frozen parameters, in the order of the `state_dict`; tied ones once."""
        return [value.detach() for _, value in self._frozen]

    @property
    def num_parameters(self) -> int:
        """The number of parameters that the model computes with: trained and frozen."""
        return self.layout.num_trained + sum(value.numel() for value in self.frozen)

    def use_frozen(self, tensors: Sequence[Tensor]) -> None:
        """Use the frozen parameters of another network of this model instead of copies of them.

        So they are in memory once, and equal even if the model's factory draws them from a generator of its own.
        """
        for (_, value), tensor in zip(self._frozen, tensors, strict=True):
            value.data = tensor
        self._unchanged = self._versions()

    def _versions(self) -> list[tuple[int, int]]:
        """Changes where a frozen parameter is changed, except through an operation in place on its `.data`."""
        return [(value.data_ptr(), value._version) for _, value in self._frozen]

    @property
    def vector(self) -> Tensor:
        """The floating-point state of the module. Changing it changes the module."""
        return self._weights.vector

    def load(self, weights: Weights) -> None:
        """Copy weights into the module and reset its non-persistent buffers to their initial values."""
        self._weights.vector.copy_(weights.vector)
        for buffer, initial in self._scratch:
            buffer.copy_(initial)
        for entry, buffer in self._integer_buffers:
            buffer.copy_(entry.of(weights))

    def weights(self) -> Weights:
        """A copy of the module's weights. Raises `Mismatch` if the module has changed a frozen parameter."""
        for (name, _), before, now in zip(self._frozen, self._unchanged, self._versions(), strict=True):
            if before != now:
                raise Mismatch(f"the model changes its frozen parameter {name}; make it a buffer, which is sent")
        for entry, buffer in self._integer_buffers:
            self._weights.integers[entry.start : entry.stop] = buffer.reshape(-1)
        return Weights(self._weights.vector.clone(), self._weights.integers.clone())

    def state(self, weights: Weights) -> dict[str, Tensor]:
        """The complete `state_dict` of the module with these weights, the frozen parameters included."""
        return {**self.module.state_dict(), **self.layout.unflatten(weights)}
