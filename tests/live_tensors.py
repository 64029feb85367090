"""How much memory tensors occupy."""

import gc
from contextlib import suppress

from torch import Tensor


def live_bytes() -> int:
    """The bytes of all tensors of this process; memory that several tensors share counts once."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            with suppress(NotImplementedError):  # a leftover of vmap has no memory of its own
                storage = thing.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
