"""The only source of chance.

Draws are addressed, not consumed: what happens in round 7 to client 3 is a function of (seed, 7, purpose, 3)
and of nothing that ran before. So results do not depend on the order of execution, on the number of workers,
or on resuming.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

SETUP = 0
"""The round number of everything that is drawn before the first round."""


def stream(seed: int, round: int, purpose: str, client: int | None = None) -> np.random.Generator:
    """The generator for one purpose in one round (and, where it is about one client, for that client)."""
    tag = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    key = (seed, round, tag) if client is None else (seed, round, tag, client)
    return np.random.default_rng(np.random.SeedSequence(key))


@contextmanager
def torch_seeded(rng: np.random.Generator, device: "torch.device") -> Iterator[None]:
    """Seed torch's global generators from `rng` (initialisation and dropout draw from them), then put them back."""
    import torch

    # Not torch.manual_seed: where CUDA sleeps it queues the seed with a stack trace, for every call.
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    before = [generator.get_state() for generator in generators]
    seed = int(rng.integers(2**63))
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
