"""Networks: the published ones have the sizes of their papers, and all of them accept other images."""

import numpy as np
import pytest
import torch
from torch import nn

import filfl
from filfl.errors import ConfigError
from filfl.models.base import Model
from filfl.models.cnn import Halve, LeafCNN, SmallCNN
from filfl.models.linear import Linear
from filfl.models.resnet import Block, ResNet18, SmallResNet


def num_weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def shapes(module: nn.Module, kinds: tuple[type[nn.Module], ...], x: torch.Tensor) -> list[list[int]]:
    """The output shape of every layer of these kinds, without the batch dimension."""
    seen: list[list[int]] = []
    for layer in module.modules():
        if isinstance(layer, kinds):
            layer.register_forward_hook(lambda _, __, out: seen.append(list(out.shape[1:])))
    module.eval()
    with torch.no_grad():
        module(x)
    return seen


def test_leaf_cnn_has_the_layers_of_leaf() -> None:
    net = LeafCNN().build((1, 28, 28), 62)
    assert [list(p.shape) for p in net.parameters()] == [
        *([32, 1, 5, 5], [32]),
        *([64, 32, 5, 5], [64]),
        *([2048, 7 * 7 * 64], [2048]),
        *([62, 2048], [62]),
    ]
    assert num_weights(net) == 6_603_710
    layers = (nn.Conv2d, Halve, nn.Linear)
    assert shapes(net, layers, torch.zeros(2, 1, 28, 28)) == [
        *([32, 28, 28], [32, 14, 14]),
        *([64, 14, 14], [64, 7, 7]),
        *([2048], [62]),
    ]


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (1, 1, 7, 5), (4, 2, 2, 3)])
def test_pooling_is_the_same_with_and_without_a_gradient(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = nn.functional.max_pool2d(x, 2)
    assert torch.equal(Halve()(x), expected)
    with torch.no_grad():
        assert torch.equal(Halve()(x), expected)
        assert torch.equal(Halve()(x.to(memory_format=torch.channels_last)), expected)


def test_leaf_cnn_computes_the_outputs_of_leaf() -> None:
    net = LeafCNN().build((2, 8, 8), 3)
    x = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    weights = list(net.parameters())
    expected = x
    for kernel, bias in (weights[0:2], weights[2:4]):
        expected = nn.functional.conv2d(expected, kernel, bias, padding="same").relu()
        expected = nn.functional.max_pool2d(expected, 2)
    expected = (expected.flatten(1) @ weights[4].T + weights[5]).relu() @ weights[6].T + weights[7]
    assert torch.allclose(net(x), expected, atol=1e-5)


def test_pooling_before_the_relu_changes_no_gradient() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (5, 3, 8, 8), generator=rng).float()  # whole numbers: many are equal, many are 0
    out = torch.randn(5, 3, 4, 4, generator=rng)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    nn.functional.max_pool2d(a, 2).relu().backward(out)
    nn.functional.max_pool2d(b.relu(), 2).backward(out)
    assert torch.equal(a.grad, b.grad)


def test_resnet18_is_the_variant_for_32_x_32_pixels() -> None:
    net = ResNet18().build((3, 32, 32), 10)
    assert num_weights(net) == 11_173_962
    assert shapes(net, (Block,), torch.zeros(1, 3, 32, 32)) == [
        *([[64, 32, 32]] * 2),
        *([[128, 16, 16]] * 2),
        *([[256, 8, 8]] * 2),
        *([[512, 4, 4]] * 2),
    ]
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == 17, "with the last layer, the 18 of its name"
    assert sum(m.kernel_size == (1, 1) for m in convolutions) == 3, "a shortcut where the shape changes"
    assert not any(isinstance(m, nn.MaxPool2d) for m in net.modules())


def test_small_resnet_with_three_blocks_is_the_papers_resnet_20() -> None:
    net = SmallResNet(blocks=3).build((3, 32, 32), 10)
    # Table 6 of the paper has 0.27 M; its shortcuts without weights save the last two terms.
    stem, first = 3 * 16 * 9 + 32, 6 * (16 * 16 * 9 + 32)
    second = (16 * 32 + 5 * 32 * 32) * 9 + 6 * 64
    third = (32 * 64 + 5 * 64 * 64) * 9 + 6 * 128
    assert num_weights(net) == stem + first + second + third + 650 + (16 * 32 + 64) + (32 * 64 + 128) == 272_474
    assert shapes(net, (Block,), torch.zeros(1, 3, 32, 32))[::3] == [[16, 32, 32], [32, 16, 16], [64, 8, 8]]


def test_a_block_whose_residual_is_zero_is_its_shortcut() -> None:
    block = Block(4, 4, 1).eval()
    for parameter in block.residual.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x.relu())


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 9, 6), (2, 33, 32), (1, 28, 28)])
@pytest.mark.parametrize("model", [LeafCNN(), SmallCNN(), SmallCNN(channels=(3,), hidden=5), SmallResNet(), ResNet18()])
def test_networks_accept_other_images(model: Model, shape: tuple[int, int, int]) -> None:
    net = model.build(shape, 7)
    out = net(torch.zeros(2, *shape))
    assert out.shape == (2, 7)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_small_cnn_is_leaf_cnn_with_other_sizes() -> None:
    small = SmallCNN(channels=(32, 64), hidden=2048).build((1, 28, 28), 62)
    assert [p.shape for p in small.parameters()] == [p.shape for p in LeafCNN().build((1, 28, 28), 62).parameters()]
    assert num_weights(SmallCNN(channels=(), hidden=5).build((1, 2, 3), 4)) == 6 * 5 + 5 + 5 * 4 + 4


def test_linear_is_a_product_without_a_bias() -> None:
    net = Linear().build((3,), 0)
    (weight,) = net.parameters()
    x = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert weight.shape == (1, 3) and torch.allclose(net(x), (x @ weight[0])) and net(x).shape == (2,)
    assert net(x[:1]).shape == (1,)


@pytest.mark.parametrize("name", ["leaf-cnn", "small-cnn", "resnet18", "small-resnet"])
def test_networks_for_images_refuse_other_data(name: str, blobs: filfl.FederatedData) -> None:
    from filfl.models import MODELS

    with pytest.raises(ConfigError, match=r"needs images .* have the shape \[4\]; use mlp or logistic"):
        MODELS[name]().build(blobs.sample_shape, 3)


def test_images_too_small_for_the_pooling_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 4 x 4 pixels, but those of the data have 9 x 3"):
        LeafCNN().build((1, 9, 3), 10)
    with pytest.raises(ConfigError, match="at least 8 x 8 pixels"):
        SmallCNN(channels=(4, 4, 4)).build((1, 7, 8), 10)


def test_a_small_resnet_learns_in_federated_rounds() -> None:
    x = np.zeros((240, 1, 6, 6), dtype=np.uint8)
    y = np.arange(240) % 2
    x[y == 1, :, :, 3:] = 255
    data = filfl.FederatedData.from_arrays(x, y, np.arange(240) % 7 % 6)
    options = {"model.name": "small-resnet", "model.width": 4, "training.epochs": 5, "training.lr": 0.05}
    result = filfl.simulate({"rounds": 5, "selection.k": 3, **options}, data)
    assert result.accuracy[-1] > 0.95 and not any(record["refused"] for record in result.records)
