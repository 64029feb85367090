"""Unnamed memory that processes share. It is freed with the last process that maps it, however that process ends."""

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
"""The shape and the dtype of a tensor ("float32"), as plain values that can be sent over a pipe."""


class Segment:
    """Shared memory for tensors, mapped through its file descriptor. The descriptor is closed with the object; the
    memory stays as long as a tensor uses it."""

    def __init__(self, fd: int, specs: Sequence[Spec]) -> None:
        """Take ownership of a descriptor that another process sent."""
        self.fd = fd
        self.specs = specs
        weakref.finalize(self, os.close, fd)
        self._memory = mmap.mmap(fd, 0)
        self._lent: weakref.ref[memoryview] | None = None

    @classmethod
    def make(cls, specs: Sequence[Spec]) -> "Segment":
        """New memory for these tensors, filled with zeros."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("filfl")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, max(1, sum(map(_num_bytes, specs))))
        except OSError:
            os.close(fd)
            raise
        return cls(fd, specs)

    @classmethod
    def copy(cls, tensors: Sequence[Tensor]) -> "Segment":
        """New memory with a copy of these tensors."""
        segment = cls.make([(list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for tensor in tensors])
        for copy, tensor in zip(segment.tensors(), tensors, strict=True):
            copy.copy_(tensor)
        return segment

    def tensors(self) -> list[Tensor]:
        """The tensors in this memory, one after the other."""
        # All of them refer to this one view: when it is freed, so are they, and every view of them.
        view = memoryview(self._memory)
        self._lent = weakref.ref(view)
        tensors, offset = [], 0
        for spec in self.specs:
            shape, dtype = tuple(spec[0]), getattr(torch, spec[1])
            if count := math.prod(shape):
                tensors.append(torch.frombuffer(view, dtype=dtype, count=count, offset=offset).view(shape))
            else:
                tensors.append(torch.empty(shape, dtype=dtype))
            offset += _num_bytes(spec)
        return tensors

    @property
    def lent(self) -> bool:
        """Whether a tensor of the last `tensors` is still in use."""
        return self._lent is not None and self._lent() is not None


def _num_bytes(spec: Spec) -> int:
    shape, name = spec
    return -(-math.prod(shape) * int(getattr(torch, name).itemsize) // ALIGNED) * ALIGNED
