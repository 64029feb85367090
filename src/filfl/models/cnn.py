"""Convolutional networks with pooling, after LEAF's.

Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018; the network for FEMNIST.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from filfl.config.schema import Count
from filfl.models.base import Model, image_shape


@dataclass(frozen=True, kw_only=True)
class LeafCNN(Model):
    """LEAF's network for FEMNIST: 32 and 64 channels, 2,048 hidden units; 6,603,710 weights for its 62 classes."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return SmallCNN(channels=(32, 64), hidden=2048).build(sample_shape, classes)


@dataclass(frozen=True, kw_only=True)
class SmallCNN(Model):
    """A smaller version of LEAF's network, for images.

    5 x 5 convolutions that keep the size, each followed by 2 x 2 pooling and ReLU, and two dense layers.
    """

    channels: tuple[Count, ...] = (16, 32)
    """The number of channels of each convolution. Each of them halves height and width, so the images must have at
    least 2^len(channels) pixels per side."""
    hidden: Count = 128
    """The number of units of the hidden dense layer."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        halved = 2 ** len(self.channels)
        before, height, width = image_shape(sample_shape, at_least=halved)
        layers: list[nn.Module] = []
        for after in self.channels:
            # LEAF applies the ReLU before the pooling. Outputs and gradients are the same in both orders, but after
            # the pooling the ReLU has a quarter of the numbers.
            layers += [nn.Conv2d(before, after, 5, padding=2), Halve(), nn.ReLU()]
            before = after
        flat = before * (height // halved) * (width // halved)
        dense = [nn.Linear(flat, self.hidden), nn.ReLU(), nn.Linear(self.hidden, classes)]
        return _CNN(*layers, nn.Flatten(), *dense)


class _CNN(nn.Sequential):
    """Trains in the channels-last memory format, in which a CPU computes gradients faster."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            x = x.to(memory_format=torch.channels_last)
        for layer in self:
            x = layer(x)
        return x


class Halve(nn.Module):
    """2 x 2 max pooling.

    Without gradients it compares rows and then columns. This gives the same maxima, and on a CPU it is much faster than
    the pooling that also stores their positions.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return functional.max_pool2d(x, 2)
        height, width = x.shape[-2] // 2 * 2, x.shape[-1] // 2 * 2
        rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])
