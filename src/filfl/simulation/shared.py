"""Memory that processes share and that has no name: with the last process that maps it the memory is gone, whatever
ended that process."""

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from filfl.evaluation import ALIGNED

Spec = tuple[Sequence[int], str]
"""The shape and the type of a tensor ("float32"), as plain values that go over a pipe."""


class Segment:
    """A piece of shared memory; who has its file descriptor can map it. The descriptor is closed with the object, the
    memory stays as long as a tensor lies in it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        """Take over a descriptor that another process gave."""
        self.fd = fd
        self.nbytes = nbytes
        weakref.finalize(self, os.close, fd)
        self._memory = mmap.mmap(fd, nbytes)
        self._lent: weakref.ref[memoryview] | None = None

    @classmethod
    def make(cls, specs: Sequence[Spec]) -> "Segment":
        """New memory, all zero, with room for these tensors."""
        nbytes = max(1, sum(map(_num_bytes, specs)))
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("filfl")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, nbytes)
        except OSError:
            os.close(fd)
            raise
        return cls(fd, nbytes)

    def tensors(self, specs: Sequence[Spec]) -> list[Tensor]:
        """Tensors in this memory, one behind the other."""
        # All of them hold on to this one view: once it is gone, so are they, and every view of them.
        view = memoryview(self._memory)
        self._lent = weakref.ref(view)
        tensors, offset = [], 0
        for spec in specs:
            shape, dtype = tuple(spec[0]), getattr(torch, spec[1])
            if count := math.prod(shape):
                tensors.append(torch.frombuffer(view, dtype=dtype, count=count, offset=offset).view(shape))
            else:
                tensors.append(torch.empty(shape, dtype=dtype))
            offset += _num_bytes(spec)
        return tensors

    @property
    def lent(self) -> bool:
        """Whether somebody still holds a tensor of the last `tensors`."""
        return self._lent is not None and self._lent() is not None


def spec_of(tensor: Tensor) -> Spec:
    return list(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _num_bytes(spec: Spec) -> int:
    shape, name = spec
    return -(-math.prod(shape) * int(getattr(torch, name).itemsize) // ALIGNED) * ALIGNED
