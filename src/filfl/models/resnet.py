"""Residual networks for small images.

He et al.: Deep Residual Learning for Image Recognition. CVPR 2016. For images of 32 x 32 pixels the stem is a 3 x 3
convolution without pooling; where the shape changes, the shortcut is a 1 x 1 convolution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from filfl.config.schema import Count
from filfl.models.base import Model, image_shape


@dataclass(frozen=True, kw_only=True)
class ResNet18(Model):
    """ResNet-18 for 32 x 32 images, with batch normalisation: 11,173,962 weights for 3 colours and 10 classes.

    Images of at most 8 x 8 pixels shrink to one pixel. Batch normalisation cannot train on those in a batch of one
    sample.
    """

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _resnet(sample_shape, (64, 128, 256, 512), 2, classes)


@dataclass(frozen=True, kw_only=True)
class SmallResNet(Model):
    """A narrow ResNet of three stages, of depth 6 `blocks` + 2.

    With width = 16 and blocks = 3 it is the ResNet-20 of He et al. (272,474 weights).
    """

    width: Count = 16
    """The number of channels of the first stage; the second has 2 `width`, the third 4 `width`."""
    blocks: Count = 1
    """The number of residual blocks per stage."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _resnet(sample_shape, (self.width, 2 * self.width, 4 * self.width), self.blocks, classes)


class Block(nn.Module):
    """relu(F(x) + shortcut(x)), with F two 3 x 3 convolutions."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(before, after, 3, stride), nn.ReLU(), *_convolution(after, after, 3, 1)
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.residual(x) + self.shortcut(x))


def _convolution(before: int, after: int, kernel: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(after)]


def _resnet(sample_shape: tuple[int, ...], widths: Sequence[int], blocks: int, classes: int) -> nn.Module:
    """One stage of `blocks` blocks for each width. All stages but the first halve height and width."""
    channels, _, _ = image_shape(sample_shape, at_least=1)
    layers = [*_convolution(channels, widths[0], 3, 1), nn.ReLU()]
    before = widths[0]
    for stage, after in enumerate(widths):
        strides = [1 if stage == 0 else 2, *[1] * (blocks - 1)]
        layers.append(nn.Sequential(*(Block(before if i == 0 else after, after, s) for i, s in enumerate(strides))))
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
