"""A model's whole state as one flat vector, and back.

Filtering, guarding and averaging are arithmetic on vectors; names and shapes matter only where a model is run
or sent. The trained parameters stand first, so that `vector[:num_trained]` is what SGD changes; the other
floating-point entries (frozen parameters, BatchNorm statistics) follow and are averaged too. Integer and
boolean buffers are kept apart, exactly: they cannot be averaged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from filfl.errors import PluginError


class Mismatch(Exception):
    """A state that does not have this layout; the text says where."""


@dataclass(frozen=True)
class Weights:
    """The state of a model: its floats as one vector [d], its integer buffers as another [q]."""

    vector: Tensor
    integers: Tensor


@dataclass(frozen=True)
class Entry:
    """Where one named tensor lies: `start` to `stop` in the vector, or in the integers."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int

    @property
    def integer(self) -> bool:
        return not self.dtype.is_floating_point

    def of(self, weights: Weights) -> Tensor:
        """This entry's part of the weights: a view where the type allows it."""
        flat = weights.integers if self.integer else weights.vector
        return flat[self.start : self.stop].view(self.shape).to(self.dtype)


@dataclass(frozen=True)
class Layout:
    """The names, shapes and types of a model's state, in the order of its `state_dict`."""

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
                raise PluginError(f"the model's {name} has no shape yet: run one batch through it in its factory")
            if not isinstance(value, Tensor) or value.is_complex():
                raise PluginError(f"the model's state {name} must be a real tensor (got {type(value).__name__})")
        dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
        if not dtypes:
            raise PluginError("the model has no weights to train")
        if len(dtypes) != 1:
            found = ", ".join(sorted(str(d) for d in dtypes))
            raise PluginError(f"the model's floating-point weights must all have one dtype (got {found})")

        def rank(value: Tensor) -> int:
            return 2 if not value.is_floating_point() else int(not value.requires_grad)

        # Tied weights appear under several names: one place in the vector serves them all.
        places: dict[int, tuple[int, int]] = {}
        ends = [0, 0, 0]
        for group in range(3):
            ends[group] = ends[0] if group == 1 else 0
            for value in state.values():
                if rank(value) == group and id(value) not in places:
                    places[id(value)] = (ends[group], ends[group] + value.numel())
                    ends[group] += value.numel()
        return cls(
            entries=tuple(
                Entry(name, tuple(value.shape), value.dtype, *places[id(value)]) for name, value in state.items()
            ),
            num_trained=ends[0],
            num_floats=ends[1],
            num_integers=ends[2],
            dtype=dtypes.pop(),
        )

    @property
    def places(self) -> list[Entry]:
        """Where the trained parameters lie, in the order of the vector; tied ones once."""
        trained = {(e.start, e.stop): e for e in reversed(self.entries) if not e.integer and e.stop <= self.num_trained}
        return [trained[place] for place in sorted(trained)]

    def views(self, stack: Tensor) -> list[Tensor]:
        """Trained parameters [..., num_trained] by places, [..., *shape] each, without a copy."""
        sizes = [entry.stop - entry.start for entry in self.places]
        parts = zip(self.places, torch.split(stack, sizes, dim=-1), strict=True)
        return [part.view(*stack.shape[:-1], *entry.shape) for entry, part in parts]

    @property
    def num_bytes(self) -> int:
        """What one model weighs on the wire, without the transport's own overhead."""
        places = {(e.integer, e.start): (e.stop - e.start) * e.dtype.itemsize for e in self.entries}
        return sum(places.values())

    def flatten(self, state: Mapping[str, Any]) -> Weights:
        """Named tensors as weights; raises `Mismatch` where keys, shapes or dtypes are not this layout's."""
        names = {entry.name for entry in self.entries}
        if missing := sorted(names - state.keys()):
            raise Mismatch(f"key {missing[0]} is missing")
        if unexpected := sorted(map(str, state.keys() - names)):
            raise Mismatch(f"key {unexpected[0]} is not one of the model's")
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
        """Weights as a `state_dict`."""
        return {entry.name: entry.of(weights) for entry in self.entries}

    def empty(self, device: torch.device | None = None) -> Weights:
        return Weights(
            vector=torch.zeros(self.num_floats, dtype=self.dtype, device=device),
            integers=torch.zeros(self.num_integers, dtype=torch.int64, device=device),
        )


class FlatModel:
    """A module whose parameters and buffers are views into one flat vector: loading weights is one copy."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self.device = device
        self.layout = Layout.of(module)
        self._weights = self.layout.empty(device)
        self._integer_buffers: list[tuple[Entry, Tensor]] = []
        # Buffers that are no part of the state must not carry anything from one client to the next.
        self._scratch = [(b, b.clone()) for b in module.buffers() if id(b) not in _ids(module)]
        state = module.state_dict(keep_vars=True)
        for entry in self.layout.entries:
            tensor = state[entry.name]
            if entry.integer:
                self._weights.integers[entry.start : entry.stop] = tensor.detach().reshape(-1)
                self._integer_buffers.append((entry, tensor))
                continue
            view = entry.of(self._weights)
            view.copy_(tensor.detach())
            tensor.data = view
        self.trained: list[Tensor] = [state[entry.name] for entry in self.layout.places]
        """The parameters that train, in the order of the vector."""

    @property
    def vector(self) -> Tensor:
        """The live floats of the module: changing them changes the module."""
        return self._weights.vector

    def load(self, weights: Weights) -> None:
        """Copy weights into the module, and put buffers that are no weights back to how they were at the start."""
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


def _ids(module: nn.Module) -> set[int]:
    return {id(value) for value in module.state_dict(keep_vars=True).values()}
