"""Residual networks for small images.

He et al.: Deep Residual Learning for Image Recognition. CVPR 2016. For images of 32 x 32 pixels the stem is a 3 x 3
convolution without pooling; where the shape changes, the shortcut is a 1 x 1 convolution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from filfl.models.base import Model
from filfl.models.images import image_shape
from filfl.options import Count


@dataclass(frozen=True, kw_only=True)
class ResNet18(Model):
    """ResNet-18 for 32 x 32 images, with batch normalisation: 11,173,962 weights for 3 colours and 10 classes.

    Images of 8 x 8 or less shrink to one pixel, which batch normalisation cannot train on in a batch of one sample.
    """

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        return _resnet(sample_shape, (64, 128, 256, 512), 2, classes)


@dataclass(frozen=True, kw_only=True)
class SmallResNet(Model):
    """A narrow ResNet of three stages with `width`, 2 `width` and 4 `width` channels; `blocks` in each stage.

    Its depth is 6 `blocks` + 2: with 3 blocks it is the paper's ResNet-20 (272,474 weights).
    """

    width: Count = 16
    blocks: Count = 1

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
    """Stages of `blocks` blocks, one a width; all but the first stage begin by halving height and width."""
    channels, _, _ = image_shape(sample_shape, at_least=1)
    layers = [*_convolution(channels, widths[0], 3, 1), nn.ReLU()]
    before = widths[0]
    for stage, after in enumerate(widths):
        strides = [1 if stage == 0 else 2, *[1] * (blocks - 1)]
        layers.append(nn.Sequential(*(Block(before if i == 0 else after, after, s) for i, s in enumerate(strides))))
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
