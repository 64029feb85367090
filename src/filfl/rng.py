"""The only source of randomness.

Every draw has an address: the draw for client 3 in round 7 is a function of (seed, 7, purpose, 3) and not of previous
draws. So results do not depend on the order of execution, on the number of workers, or on resuming.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

SETUP = 0
"""The round number of draws before the first round."""


def stream(seed: int, round: int, purpose: str, client: int | None = None) -> np.random.Generator:
    """The generator for one purpose in one round, and for one client if the draw concerns a single client."""
    tag = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    key = (seed, round, tag) if client is None else (seed, round, tag, client)
    return np.random.default_rng(np.random.SeedSequence(key))


@contextmanager
def torch_seeded(rng: np.random.Generator, device: "torch.device") -> Iterator[None]:
    """Seed torch's global generators, which initialisation and dropout use, from `rng`; restore them afterwards."""
    import torch

    # Not torch.manual_seed: if CUDA is not initialised, every call queues the seed together with a stack trace.
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
