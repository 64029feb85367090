"""Logits on the wire: what each form sends, what comes out again, what is refused, and what counts as a lie."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from filfl.logits import ARITHMETIC, LARGEST, ROOM, Form, Packed
from filfl.weights import Mismatch

CPU = torch.device("cpu")
FORMS = [Form(p, top) for p in ("float32", "float16", "int8") for top in (None, 1, 3)]
ALL = [Form(), Form("float16"), Form("int8")]


def sent(packed: Packed) -> int:
    parts = (packed.values, packed.scales, packed.classes)
    return sum(part.numel() * part.itemsize for part in parts if part is not None)


outputs = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(4, 12), st.floats(0.01, 50)).map(
    lambda drawn: torch.randn(drawn[1], drawn[2], generator=torch.Generator().manual_seed(drawn[0])) * drawn[3]
)


def test_bytes_by_hand() -> None:
    # 500 samples of 62 classes, the paper's FEMNIST with m = 500.
    shape = (500, 62)
    assert Form().num_bytes(shape) == 124_000 and Form("float16").num_bytes(shape) == 62_000
    assert Form("int8").num_bytes(shape) == 31_000 + 2_000
    assert Form("float16", top=5).num_bytes(shape) == 500 * 5 * (2 + 1)
    assert Form("int8", top=5).num_bytes(shape) == 500 * (5 * (1 + 1) + 4)
    assert Form("float32", top=5).num_bytes((10, 1000)) == 10 * 5 * (4 + 2), "more than 256 classes take two bytes"
    assert Form().num_bytes((10,)) == 40, "one number a sample"


@given(outputs, st.sampled_from(FORMS))
def test_what_is_counted_is_what_is_sent(z: Tensor, form: Form) -> None:
    assert sent(form.pack(z)) == form.num_bytes(tuple(z.shape))


@given(outputs)
def test_float32_is_exact(z: Tensor) -> None:
    assert torch.equal(Form().unpack(Form().pack(z), tuple(z.shape), CPU), z)


@given(outputs, st.sampled_from(ALL))
def test_what_comes_out_is_near_what_went_in(z: Tensor, form: Form) -> None:
    got = form.unpack(form.pack(z), tuple(z.shape), CPU)
    step = {"float32": 0.0, "float16": 2.0**-10, "int8": 1 / 250}[form.precision]
    assert got.shape == z.shape
    assert bool(((got - z).abs() <= step * z.abs().amax(dim=1, keepdim=True)).all())


@given(outputs, st.sampled_from([form for form in FORMS if form.top]))
def test_the_top_keeps_the_likely_classes_and_shares_the_rest(z: Tensor, form: Form) -> None:
    got = form.unpack(form.pack(z), tuple(z.shape), CPU).exp()
    exact, k = z.softmax(dim=1), form.top
    assert got.shape == z.shape
    rest = got.sort(dim=1).values[:, : z.shape[1] - k]
    assert bool(((rest - rest[:, :1]).abs() < 1e-6).all()), "those left out are all alike"
    if form.precision == "float32":
        assert torch.allclose(got.sum(dim=1), torch.ones(len(z)), atol=1e-4)
        assert torch.allclose(got.topk(1).values, exact.topk(1).values, atol=1e-5)


def test_the_top_by_hand() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/16, 1/16: with the first two, 1/4 is left for three.
    z = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625]]).log() + 7.0
    got = Form(top=2).unpack(Form(top=2).pack(z), (1, 5), CPU).exp()[0]
    assert got.tolist() == pytest.approx([1 / 2, 1 / 4, 1 / 12, 1 / 12, 1 / 12])
    # With the first alone, 1/2 would be left for four: as much as 1/8 each.
    got = Form(top=1).unpack(Form(top=1).pack(z), (1, 5), CPU).exp()[0]
    assert got.tolist() == pytest.approx([1 / 2, *[1 / 8] * 4])


def test_int8_by_hand() -> None:
    packed = Form("int8").pack(torch.tensor([[127.0, -63.4, 0.6], [0.0, 0.0, 0.0]]))
    assert packed.values.tolist() == [[127, -63, 1], [0, 0, 0]] and packed.scales.tolist() == [1.0, 0.0]
    assert Form("int8").unpack(packed, (2, 3), CPU).tolist() == [[127.0, -63.0, 1.0], [0.0, 0.0, 0.0]]


def slack(z: Tensor) -> Tensor:
    """How far another machine may be off."""
    return ARITHMETIC * z.abs().amax(dim=1, keepdim=True).clamp(min=1.0, max=ROOM)


@given(outputs, st.sampled_from(FORMS), st.integers(0, 99))
def test_honest_weights_are_never_called_a_lie(z: Tensor, form: Form, seed: int) -> None:
    """Not even where the server's machine computes as differently as is allowed for."""
    off = 2 * torch.rand(z.shape, generator=torch.Generator().manual_seed(seed)) - 1
    assert form.lie(form.pack(z), z) is None
    assert form.lie(form.pack(z), z + 0.98 * slack(z) * off) is None


@given(outputs, st.sampled_from(FORMS), st.integers(0, 8), st.integers(0, 11))
def test_a_lie_about_one_number_of_one_sample_is_found(z: Tensor, form: Form, j: int, c: int) -> None:
    j = j % len(z)
    c = int(z[j].argmin()) if form.top else c % z.shape[1]  # of likely classes, the most likely may be told apart alone
    told = z.clone()
    told[j, c] = told[j].abs().max() * 1.2 + 1.0
    assert form.lie(form.pack(told), z) is not None


@given(outputs, st.integers(0, 99))
def test_what_is_no_lie_moves_no_loss_by_more_than_twice_the_tolerance(z: Tensor, seed: int) -> None:
    off = 2 * torch.rand(z.shape, generator=torch.Generator().manual_seed(seed)).round() - 1
    told, y = z + 0.99 * slack(z) * off, torch.zeros(len(z), dtype=torch.long)
    assert Form().lie(Form().pack(told), z) is None
    moved = cross_entropy(told, y, reduction="none") - cross_entropy(z, y, reduction="none")
    assert bool((moved.abs() <= 2 * slack(z)[:, 0] + 1e-5).all())


def test_a_large_scale_makes_no_room_for_itself() -> None:
    # Counts that are all 0 are within half a step of anything, if only the step is large enough.
    z = torch.tensor([[4.0, -4.0, 1.0]])
    claim = Packed(torch.zeros(1, 3, dtype=torch.int8), torch.tensor([100.0]))
    assert "int8 counts in other steps" in Form("int8").lie(claim, z)


@pytest.mark.parametrize("form", ALL)
def test_large_outputs_make_no_more_room(form: Form) -> None:
    """Who uploads weights decides what these say: a large shift, or a class that never matters, costs it nothing."""
    shifted = torch.tensor([[4.0, -4.0, 1.0]]) + 20_000.0
    assert "do not say" in form.lie(form.pack(shifted + torch.tensor([[-60.0, 60.0, 0.0]])), shifted)
    outlier = torch.tensor([[4.0, -4.0, -1000.0]])
    assert "do not say" in form.lie(form.pack(torch.tensor([[-4.0, 4.0, -1000.0]])), outlier)


def test_int8_is_what_rounding_makes_of_it() -> None:
    z = torch.tensor([[127.0, 10.2, 10.45, -3.0]])  # steps of 1, and a slack of 0.5
    packed = Form("int8").pack(z)

    def with_counts(*counts: int) -> str | None:
        return Form("int8").lie(replace(packed, values=torch.tensor([counts], dtype=torch.int8)), z)

    assert with_counts(127, 10, 10, -3) is None
    assert with_counts(127, 11, 11, -3) is None, "10.7 and 10.95 are within the slack, and round to 11"
    assert with_counts(126, 10, 10, -3) is None
    assert with_counts(127, 9, 10, -3) and with_counts(127, 10, 9, -3) and with_counts(127, 10, 10, -5)


def test_classes_nobody_finds_likely_are_a_lie() -> None:
    z = torch.tensor([[5.0, 4.0, -5.0, -6.0]])
    packed = Form(top=2).pack(z)
    logs = z.log_softmax(dim=1)
    swapped = replace(packed, values=logs[:, [0, 3]], classes=torch.tensor([[0, 3]], dtype=torch.uint8))
    assert Form(top=2).lie(packed, z) is None
    assert Form(top=2).lie(swapped, z) == "its weights find other classes likely than it claimed"
    near = torch.tensor([[5.0, 4.0, 4.0001, -6.0]])  # on another machine the third may come before the second
    assert Form(top=2).lie(Form(top=2).pack(z), near) is not None
    assert Form(top=2).lie(Form(top=2).pack(torch.tensor([[5.0, 4.0001, 4.0, -6.0]])), near) is None


def test_weights_that_say_nothing_finite_reproduce_nothing() -> None:
    assert "not finite" in Form().lie(Form().pack(torch.zeros(1, 2)), torch.tensor([[math.nan, 0.0]]))


Z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("form", "packed", "reason"),
    [
        (Form(), "logits", "the logits are a str"),
        (Form(), Packed(None), "the logits are missing"),
        (Form(), Packed(Z[:5]), r"the logits have shape \(5, 5\) instead of \(6, 5\)"),
        (Form(), Packed(Z.T), r"the logits have shape \(5, 6\)"),
        (Form(), Packed(Z.double()), "the logits have dtype torch.float64 instead of torch.float32"),
        (Form("float16"), Packed(Z), "the logits have dtype torch.float32 instead of torch.float16"),
        (Form(), Packed(Z * math.nan), "not finite"),
        (Form(), Packed(Z / 0), "not finite"),
        (Form(), Packed(Z * 1e9), f"and {LARGEST:g} is the most"),
        (Form(), Packed(Z, torch.ones(6)), "there are scales that nobody asked for"),
        (Form(), Packed(Z, None, torch.ones(6, 5, dtype=torch.uint8)), "there are classes that nobody asked for"),
        (Form("int8"), Packed(Z.to(torch.int8)), "the scales are missing"),
        (Form("int8"), Packed(Z.to(torch.int8), torch.ones(5)), r"the scales have shape \(5,\) instead of \(6,\)"),
        (Form("int8"), Packed(Z.to(torch.int8), torch.full((6,), math.nan)), "not finite"),
        (Form("int8"), Packed(torch.full((6, 5), 127, dtype=torch.int8), torch.full((6,), 1e6)), "is the most"),
        (Form(top=2), Packed(Z[:, :2]), "the classes are missing"),
        (Form(top=2), Packed(-Z[:, :2].abs(), None, torch.full((6, 2), 7, dtype=torch.uint8)), "beyond the 5"),
        (Form(top=2), Packed(-Z[:, :2].abs(), None, torch.ones(6, 2, dtype=torch.uint8)), "stands twice"),
        (Form(top=2), Packed(-Z[:, :2].abs(), None, torch.ones(6, 2, dtype=torch.int16)), "dtype torch.int16"),
        (Form(top=2), Packed(torch.ones(6, 2), None, torch.tensor([[0, 1]] * 6, dtype=torch.uint8)), "add up to 5.44"),
    ],
)
def test_what_cannot_be_logits_is_refused_with_the_reason(form: Form, packed: Packed, reason: str) -> None:
    with pytest.raises(Mismatch, match=reason):
        form.unpack(packed, (6, 5), CPU)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_an_honest_client_whose_model_broke_is_refused_in_every_form(form: Form, broken: float) -> None:
    z = torch.randn(3, 5)
    z[1, 2] = broken
    with pytest.raises(Mismatch):
        form.unpack(form.pack(z), (3, 5), CPU)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2, 3)])
@pytest.mark.parametrize("form", ALL)
def test_outputs_may_have_any_shape(shape: tuple[int, ...], form: Form) -> None:
    z = torch.randn(shape)
    assert form.unpack(form.pack(z), shape, CPU).shape == z.shape
    assert form.lie(form.pack(z), z) is None and sent(form.pack(z)) == form.num_bytes(shape)
