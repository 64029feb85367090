"""The state of a model as one flat vector, and back.

Filtering, checking and averaging are arithmetic on vectors. Names and shapes matter only where a model is evaluated
or sent. The trained parameters come first, so `vector[:num_trained]` is what SGD changes. The other floating-point
entries (frozen parameters, BatchNorm statistics) follow and are averaged too. Integer and boolean buffers are stored
separately, because they cannot be averaged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from filfl.errors import PluginError


class Mismatch(Exception):
    """A state that does not have this layout. The message names the first difference."""


@dataclass(frozen=True)
class Weights:
    """The state of a model: its floating-point entries as a vector [d], its integer buffers as a vector [q]."""

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
    """The names, shapes and dtypes of a model's state, in the order of its `state_dict`."""

    entries: tuple[Entry, ...]
    num_trained: int
    num_floats: int
    num_integers: int
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        state = module.state_dict(keep_vars=True)
        for name, value in state.items():
            if is_lazy(value):
                raise PluginError(f"the model's {name} has no shape; run one batch through the model in its factory")
            if not isinstance(value, Tensor) or value.is_complex():
                raise PluginError(f"the model's state {name} must be a real tensor (got {type(value).__name__})")
        dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
        if not dtypes:
            raise PluginError("the model has no floating-point weights, so there is nothing to train")
        if len(dtypes) != 1:
            found = ", ".join(sorted(str(d) for d in dtypes))
            raise PluginError(f"the model's floating-point weights must have the same dtype (got {found})")

        # Tied weights appear under several names, which share one range of the vector.
        tensors = list({id(value): value for value in state.values()}.values())
        trained = [value for value in tensors if value.requires_grad]
        frozen = [value for value in tensors if value.is_floating_point() and not value.requires_grad]
        integers = [value for value in tensors if not value.is_floating_point()]
        ranges: dict[int, tuple[int, int]] = {}
        for group in ([*trained, *frozen], integers):
            ends = accumulate((value.numel() for value in group), initial=0)
            ranges |= {id(value): limits for value, limits in zip(group, pairwise(ends), strict=True)}
        num_trained, num_frozen, num_integers = (sum(v.numel() for v in group) for group in (trained, frozen, integers))
        entries = [Entry(name, tuple(value.shape), value.dtype, *ranges[id(value)]) for name, value in state.items()]
        return cls(tuple(entries), num_trained, num_trained + num_frozen, num_integers, dtypes.pop())

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
        """The size of one model in a message, without the overhead of the transport."""
        sizes = {(e.integer, e.start): (e.stop - e.start) * e.dtype.itemsize for e in self.entries}
        return sum(sizes.values())

    def flatten(self, state: Mapping[str, Any]) -> Weights:
        """Convert named tensors to weights. Raises `Mismatch` if keys, shapes or dtypes differ from this layout."""
        names = {entry.name for entry in self.entries}
        if missing := sorted(names - state.keys()):
            raise Mismatch(f"key {missing[0]} is missing")
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
        """Convert weights to a `state_dict`."""
        return {entry.name: entry.of(weights) for entry in self.entries}

    def empty(self, device: torch.device | None = None) -> Weights:
        return Weights(
            vector=torch.zeros(self.num_floats, dtype=self.dtype, device=device),
            integers=torch.zeros(self.num_integers, dtype=torch.int64, device=device),
        )


class FlatModel:
    """A module whose parameters and buffers are views into one flat vector, so that loading weights is one copy."""

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
        """A copy of the module's weights."""
        for entry, buffer in self._integer_buffers:
            self._weights.integers[entry.start : entry.stop] = buffer.reshape(-1)
        return Weights(self._weights.vector.clone(), self._weights.integers.clone())
