"""What is done with the updates before a robust mean, to make it work with clients whose data differ.

Nearest neighbour mixing (NNM): Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing: A Recipe for
Optimal Byzantine ML under Heterogeneity. AISTATS 2023. Bucketing: Karimireddy, He, Jaggi: Byzantine-Robust Learning on
Heterogeneous Datasets via Bucketing. ICLR 2022.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from filfl.aggregation.stack import Stack
from filfl.rng import stream

Before = Literal["none", "nnm", "bucketing"]
BUCKET = 2
"""The number of updates of a bucket. Larger ones leave fewer buckets than bad clients."""


def nearest_neighbours(stack: Stack, f: int, t: int) -> Stack:
    """Each update is replaced by the mean of the n - f updates that are nearest to it, itself among them."""
    nearest = stack.squared_distances().argsort(dim=1, stable=True)[:, : stack.n - f]
    mix = torch.zeros_like(stack.inner).scatter_(1, nearest, 1 / (stack.n - f))
    return stack.mixed(mix)


def bucketing(stack: Stack, f: int, t: int) -> Stack:
    """The means of random pairs of updates; the last bucket has a single one where n is odd."""
    return stack.mixed(buckets(torch.from_numpy(stream(0, t, "buckets").permutation(stack.n))).to(stack.inner))


def buckets(order: Tensor) -> Tensor:
    """[buckets, n]: the means of updates that follow each other in this order."""
    parts = order.split(BUCKET)
    mix = torch.zeros(len(parts), len(order), dtype=torch.float64)
    for row, part in zip(mix, parts, strict=True):
        row[part] = 1 / len(part)
    return mix


BEFORE: dict[str, Callable[[Stack, int, int], Stack]] = {"nnm": nearest_neighbours, "bucketing": bucketing}
