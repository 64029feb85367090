"""The state of a model as one flat vector."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from filfl.errors import PluginError
from filfl.weights import FlatModel, Layout, Mismatch, Weights

CPU = torch.device("cpu")


class Everything(nn.Module):
    """Trained, frozen and tied weights, float, integer and boolean buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Parameter(torch.arange(4.0), requires_grad=False)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("large", torch.tensor([2**40 + 1]))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


def test_flatten_and_unflatten_are_inverse() -> None:
    module = Everything()
    layout = Layout.of(module)
    state = {name: value.clone() for name, value in module.state_dict().items() if name != "frozen"}
    back = layout.unflatten(layout.flatten(state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype for name in state)


def test_trained_weights_come_first_and_tied_ones_are_stored_once() -> None:
    layout = Layout.of(Everything())
    assert layout.num_trained == 9 + 3 + 3 + 3  # first (tied with last), its bias, norm's weight and bias
    assert layout.num_floats == layout.num_trained + 3 + 3  # running mean and variance, not frozen
    assert layout.frozen == {"frozen"} and "frozen" not in {e.name for e in layout.entries}
    assert layout.num_integers == 1 + 1 + 2  # num_batches_tracked, large, mask
    ranges = {e.name: (e.start, e.stop) for e in layout.entries}
    assert ranges["first.weight"] == ranges["last.weight"]
    floats = sorted({ranges[e.name] for e in layout.entries if not e.integer})
    assert floats[0][0] == 0 and floats[-1][1] == layout.num_floats
    assert all(a[1] == b[0] for a, b in pairwise(floats)), "no gaps, no overlaps"


def test_parameters_are_views_into_the_vector() -> None:
    torch.manual_seed(0)
    module = Everything()
    x = torch.randn(5, 3)
    plain = module.eval()(x)
    model = FlatModel(module, CPU)
    assert torch.equal(model.module(x), plain)
    kept = model.weights()
    model.vector.zero_()
    assert torch.equal(module.first.weight, torch.zeros(3, 3))
    model.load(kept)
    assert torch.equal(model.module(x), plain)
    assert module.large.item() == 2**40 + 1
    assert model.trained[0].data_ptr() == model.vector.data_ptr()
    model.module.train()(x)
    after = model.layout.unflatten(model.weights())
    assert after["norm.num_batches_tracked"] == 1
    assert model.layout.unflatten(kept)["norm.num_batches_tracked"] == 0, "weights() is a copy"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.pop("first.bias"), "key first.bias is missing"),
        (lambda s: s.update(extra=torch.ones(1)), "key extra is not in the model"),
        (lambda s: s.update(frozen=torch.ones(4)), "key frozen is a frozen parameter, which is not sent"),
        (lambda s: s.update({"first.bias": torch.ones(1)}), r"first.bias has shape \(1,\) instead of \(3,\)"),
        (lambda s: s.update({"first.bias": torch.ones(3).double()}), "dtype torch.float64 instead of torch.float32"),
    ],
)
def test_a_mismatch_names_the_key(change, reason: str) -> None:
    module = Everything()
    state = {name: value for name, value in module.state_dict().items() if name != "frozen"}
    change(state)
    with pytest.raises(Mismatch, match=reason):
        Layout.of(module).flatten(state)


def test_mixed_dtypes_and_lazy_layers_are_refused() -> None:
    with pytest.raises(PluginError, match=r"the same dtype \(got torch.float32, torch.float64\)"):
        Layout.of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))
    with pytest.raises(PluginError, match="run one batch through the model"):
        Layout.of(nn.LazyLinear(2))
    with pytest.raises(PluginError, match="no parameter with requires_grad = True"):
        Layout.of(nn.Linear(1, 1).requires_grad_(False))


class WithHiddenState(nn.Module):
    """Keeps the last batch in a non-persistent buffer, which is not in its state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("last", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x + self.last)
        self.last.copy_(x.mean(dim=0))
        return out


def test_loading_weights_resets_non_persistent_buffers() -> None:
    model = FlatModel(WithHiddenState(), CPU)
    weights, x = model.weights(), torch.ones(3, 2)
    first = model.module(x)
    model.load(weights)
    assert torch.equal(model.module(x), first)


def test_frozen_parameters_may_have_another_dtype() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1).bfloat16().requires_grad_(False)))
    assert layout.dtype == torch.float32 and layout.num_bytes == 4 * (2 * 3 + 3)


def test_a_complete_state_has_the_frozen_parameters_of_the_module() -> None:
    module = Everything()
    model = FlatModel(module, CPU)
    weights = model.weights()
    weights.vector.zero_()
    state = model.state(weights)
    assert list(state) == list(module.state_dict())
    assert state["frozen"].tolist() == [0, 1, 2, 3] and not state["first.weight"].any()
    assert module.first.weight.any(), "the module itself is not changed"


@pytest.mark.parametrize("by", ["in place", "replaced"])
def test_a_frozen_parameter_that_changes_is_reported(by: str) -> None:
    module = Everything()
    model = FlatModel(module, CPU)
    model.weights()
    if by == "in place":
        module.frozen.mul_(0.9)
    else:
        module.frozen.data = module.frozen.data * 0.9
    with pytest.raises(Mismatch, match="the model changes its frozen parameter frozen; make it a buffer"):
        model.weights()


def test_networks_can_use_the_same_frozen_parameters() -> None:
    one, other = FlatModel(Everything(), CPU), FlatModel(Everything(), CPU)
    assert one.num_parameters == 9 + 3 + 3 + 3 + 4
    other.use_frozen(one.frozen)
    assert other.module.frozen.data_ptr() == one.module.frozen.data_ptr() and not other.module.frozen.requires_grad
    other.weights()


def test_num_bytes_of_a_message_with_the_weights() -> None:
    assert Layout.of(nn.BatchNorm1d(2)).num_bytes == 4 * (2 + 2 + 2 + 2) + 8
    layout = Layout.of(Everything())
    assert layout.num_bytes == 4 * layout.num_floats + 8 + 8 + 2
    assert isinstance(layout.empty(), Weights)
