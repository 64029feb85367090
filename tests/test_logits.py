"""Encoded logits: their size, rounding and refusals; and which weights match claimed logits."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy

from filfl.logits.check import ARITHMETIC, MAX_MAGNITUDE, logit_mismatch
from filfl.logits.encoding import MAX_OUTPUT, EncodedLogits, Encoding
from filfl.weights import Mismatch

CPU = torch.device("cpu")
ENCODINGS = [Encoding(p, top) for p in ("float32", "float16", "int8") for top in (None, 1, 3)]
ALL = [Encoding(), Encoding("float16"), Encoding("int8")]


def mismatch(encoding: Encoding, claimed: EncodedLogits, outputs: Tensor) -> str | None:
    return logit_mismatch(claimed, outputs, encoding)


def sent(encoded: EncodedLogits) -> int:
    parts = (encoded.values, encoded.scales, encoded.classes)
    return sum(part.numel() * part.itemsize for part in parts if part is not None)


outputs = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(4, 12), st.floats(0.01, 50)).map(
    lambda drawn: torch.randn(drawn[1], drawn[2], generator=torch.Generator().manual_seed(drawn[0])) * drawn[3]
)


def test_bytes_by_hand() -> None:
    # 500 samples of 62 classes, the paper's FEMNIST with m = 500.
    shape = (500, 62)
    assert Encoding().num_bytes(shape) == 124_000 and Encoding("float16").num_bytes(shape) == 62_000
    assert Encoding("int8").num_bytes(shape) == 31_000 + 2_000
    assert Encoding("float16", top=5).num_bytes(shape) == 500 * 5 * (2 + 1)
    assert Encoding("int8", top=5).num_bytes(shape) == 500 * (5 * (1 + 1) + 4)
    assert Encoding("float32", top=5).num_bytes((10, 1000)) == 10 * 5 * (4 + 2), "more than 256 classes take two bytes"
    assert Encoding().num_bytes((10,)) == 40, "one number per sample"


@given(outputs, st.sampled_from(ENCODINGS))
def test_num_bytes_is_the_encoded_size(z: Tensor, encoding: Encoding) -> None:
    assert sent(encoding.encode(z)) == encoding.num_bytes(tuple(z.shape))


@given(outputs)
def test_float32_is_exact(z: Tensor) -> None:
    assert torch.equal(Encoding().decode(Encoding().encode(z), tuple(z.shape), CPU), z)


@given(outputs, st.sampled_from(ALL))
def test_decoding_inverts_encoding_up_to_rounding(z: Tensor, encoding: Encoding) -> None:
    got = encoding.decode(encoding.encode(z), tuple(z.shape), CPU)
    step = {"float32": 0.0, "float16": 2.0**-10, "int8": 1 / 250}[encoding.precision]
    assert got.shape == z.shape
    assert bool(((got - z).abs() <= step * z.abs().amax(dim=1, keepdim=True)).all())


@given(outputs, st.sampled_from([encoding for encoding in ENCODINGS if encoding.top]))
def test_top_keeps_the_likely_classes_and_splits_the_rest_evenly(z: Tensor, encoding: Encoding) -> None:
    got = encoding.decode(encoding.encode(z), tuple(z.shape), CPU).exp()
    exact, k = z.softmax(dim=1), encoding.top
    assert got.shape == z.shape
    rest = got.sort(dim=1).values[:, : z.shape[1] - k]
    assert bool(((rest - rest[:, :1]).abs() < 1e-6).all()), "all classes left out have the same probability"
    if encoding.precision == "float32":
        assert torch.allclose(got.sum(dim=1), torch.ones(len(z)), atol=1e-4)
        assert torch.allclose(got.topk(1).values, exact.topk(1).values, atol=1e-5)


def test_top_by_hand() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/16, 1/16: with the first two, 1/4 is left for three.
    z = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625]]).log() + 7.0
    got = Encoding(top=2).decode(Encoding(top=2).encode(z), (1, 5), CPU).exp()[0]
    assert got.tolist() == pytest.approx([1 / 2, 1 / 4, 1 / 12, 1 / 12, 1 / 12])
    # With the first alone, 1/2 would be left for four: as much as 1/8 each.
    got = Encoding(top=1).decode(Encoding(top=1).encode(z), (1, 5), CPU).exp()[0]
    assert got.tolist() == pytest.approx([1 / 2, *[1 / 8] * 4])


def test_int8_by_hand() -> None:
    encoded = Encoding("int8").encode(torch.tensor([[127.0, -63.4, 0.6], [0.0, 0.0, 0.0]]))
    assert encoded.values.tolist() == [[127, -63, 1], [0, 0, 0]] and encoded.scales.tolist() == [1.0, 0.0]
    assert Encoding("int8").decode(encoded, (2, 3), CPU).tolist() == [[127.0, -63.0, 1.0], [0.0, 0.0, 0.0]]


def tolerance(z: Tensor) -> Tensor:
    """The tolerance for rounding differences between machines."""
    return ARITHMETIC * z.abs().amax(dim=1, keepdim=True).clamp(min=1.0, max=MAX_MAGNITUDE)


@given(outputs, st.sampled_from(ENCODINGS), st.integers(0, 99))
def test_honest_weights_always_match(z: Tensor, encoding: Encoding, seed: int) -> None:
    """Also where the server's results differ from the client's by almost the whole tolerance."""
    off = 2 * torch.rand(z.shape, generator=torch.Generator().manual_seed(seed)) - 1
    assert mismatch(encoding, encoding.encode(z), z) is None
    assert mismatch(encoding, encoding.encode(z), z + 0.98 * tolerance(z) * off) is None


@given(outputs, st.sampled_from(ENCODINGS), st.integers(0, 8), st.integers(0, 11))
def test_one_false_number_is_a_mismatch(z: Tensor, encoding: Encoding, j: int, c: int) -> None:
    j = j % len(z)
    c = (
        int(z[j].argmin()) if encoding.top else c % z.shape[1]
    )  # with top, only the least likely class is sure to change the encoding
    claimed = z.clone()
    claimed[j, c] = claimed[j].abs().max() * 1.2 + 1.0
    assert mismatch(encoding, encoding.encode(claimed), z) is not None


@given(outputs, st.integers(0, 99))
def test_a_match_changes_no_loss_by_more_than_twice_the_tolerance(z: Tensor, seed: int) -> None:
    off = 2 * torch.rand(z.shape, generator=torch.Generator().manual_seed(seed)).round() - 1
    claimed, y = z + 0.99 * tolerance(z) * off, torch.zeros(len(z), dtype=torch.long)
    assert mismatch(Encoding(), Encoding().encode(claimed), z) is None
    moved = cross_entropy(claimed, y, reduction="none") - cross_entropy(z, y, reduction="none")
    assert bool((moved.abs() <= 2 * tolerance(z)[:, 0] + 1e-5).all())


def test_a_large_scale_does_not_widen_the_tolerance() -> None:
    # Values that are all 0 are within half a step of anything, if the step is large enough.
    z = torch.tensor([[4.0, -4.0, 1.0]])
    claim = EncodedLogits(torch.zeros(1, 3, dtype=torch.int8), torch.tensor([100.0]))
    assert "the int8 scales differ" in mismatch(Encoding("int8"), claim, z)


@pytest.mark.parametrize("encoding", ALL)
def test_large_outputs_do_not_widen_the_tolerance(encoding: Encoding) -> None:
    """A client can shift its outputs, or use a class that never matters, at no cost."""
    shifted = torch.tensor([[4.0, -4.0, 1.0]]) + 20_000.0
    assert "do not match" in mismatch(encoding, encoding.encode(shifted + torch.tensor([[-60.0, 60.0, 0.0]])), shifted)
    outlier = torch.tensor([[4.0, -4.0, -1000.0]])
    assert "do not match" in mismatch(encoding, encoding.encode(torch.tensor([[-4.0, 4.0, -1000.0]])), outlier)


def test_int8_claims_match_within_rounding() -> None:
    z = torch.tensor([[127.0, 10.2, 10.45, -3.0]])  # steps of 1, and a tolerance of 0.5
    encoded = Encoding("int8").encode(z)

    def with_counts(*counts: int) -> str | None:
        return mismatch(Encoding("int8"), replace(encoded, values=torch.tensor([counts], dtype=torch.int8)), z)

    assert with_counts(127, 10, 10, -3) is None
    assert with_counts(127, 11, 11, -3) is None, "10.7 and 10.95 are within the tolerance, and round to 11"
    assert with_counts(126, 10, 10, -3) is None
    assert with_counts(127, 9, 10, -3) and with_counts(127, 10, 9, -3) and with_counts(127, 10, 10, -5)


def test_unlikely_classes_are_a_mismatch() -> None:
    z = torch.tensor([[5.0, 4.0, -5.0, -6.0]])
    encoded = Encoding(top=2).encode(z)
    logs = z.log_softmax(dim=1)
    swapped = replace(encoded, values=logs[:, [0, 3]], classes=torch.tensor([[0, 3]], dtype=torch.uint8))
    assert mismatch(Encoding(top=2), encoded, z) is None
    assert (
        mismatch(Encoding(top=2), swapped, z)
        == "uploaded weights do not match the claimed logits: other classes are the most likely ones"
    )
    near = torch.tensor([[5.0, 4.0, 4.0001, -6.0]])  # on another machine the third may come before the second
    assert mismatch(Encoding(top=2), Encoding(top=2).encode(z), near) is not None
    assert mismatch(Encoding(top=2), Encoding(top=2).encode(torch.tensor([[5.0, 4.0001, 4.0, -6.0]])), near) is None


def test_non_finite_outputs_are_a_mismatch() -> None:
    assert "not finite" in mismatch(Encoding(), Encoding().encode(torch.zeros(1, 2)), torch.tensor([[math.nan, 0.0]]))


Z = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("encoding", "encoded", "reason"),
    [
        (Encoding(), "logits", "the logits are a str"),
        (Encoding(), EncodedLogits(None), "the logits are missing"),
        (Encoding(), EncodedLogits(Z[:5]), r"the logits have shape \(5, 5\) instead of \(6, 5\)"),
        (Encoding(), EncodedLogits(Z.T), r"the logits have shape \(5, 6\)"),
        (Encoding(), EncodedLogits(Z.double()), "the logits have dtype torch.float64 instead of torch.float32"),
        (Encoding("float16"), EncodedLogits(Z), "the logits have dtype torch.float32 instead of torch.float16"),
        (Encoding(), EncodedLogits(Z * math.nan), "not finite"),
        (Encoding(), EncodedLogits(Z / 0), "not finite"),
        (Encoding(), EncodedLogits(Z * 1e9), f"at most {MAX_OUTPUT:g}"),
        (Encoding(), EncodedLogits(Z, torch.ones(6)), "the reply has scales that were not requested"),
        (
            Encoding(),
            EncodedLogits(Z, None, torch.ones(6, 5, dtype=torch.uint8)),
            "the reply has classes that were not requested",
        ),
        (Encoding("int8"), EncodedLogits(Z.to(torch.int8)), "the scales are missing"),
        (
            Encoding("int8"),
            EncodedLogits(Z.to(torch.int8), torch.ones(5)),
            r"the scales have shape \(5,\) instead of \(6,\)",
        ),
        (Encoding("int8"), EncodedLogits(Z.to(torch.int8), torch.full((6,), math.nan)), "not finite"),
        (
            Encoding("int8"),
            EncodedLogits(torch.full((6, 5), 127, dtype=torch.int8), torch.full((6,), 1e6)),
            "must be at most",
        ),
        (Encoding(top=2), EncodedLogits(Z[:, :2]), "the classes are missing"),
        (
            Encoding(top=2),
            EncodedLogits(-Z[:, :2].abs(), None, torch.full((6, 2), 7, dtype=torch.uint8)),
            "must be below 5",
        ),
        (
            Encoding(top=2),
            EncodedLogits(-Z[:, :2].abs(), None, torch.ones(6, 2, dtype=torch.uint8)),
            "lists a class twice",
        ),
        (
            Encoding(top=2),
            EncodedLogits(-Z[:, :2].abs(), None, torch.ones(6, 2, dtype=torch.int16)),
            "dtype torch.int16",
        ),
        (
            Encoding(top=2),
            EncodedLogits(torch.ones(6, 2), None, torch.tensor([[0, 1]] * 6, dtype=torch.uint8)),
            "add up to 5.44",
        ),
    ],
)
def test_malformed_logits_are_refused_with_the_reason(encoding: Encoding, encoded: EncodedLogits, reason: str) -> None:
    with pytest.raises(Mismatch, match=reason):
        encoding.decode(encoded, (6, 5), CPU)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_non_finite_outputs_are_refused_with_every_encoding(encoding: Encoding, broken: float) -> None:
    z = torch.randn(3, 5)
    z[1, 2] = broken
    with pytest.raises(Mismatch):
        encoding.decode(encoding.encode(z), (3, 5), CPU)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2, 3)])
@pytest.mark.parametrize("encoding", ALL)
def test_outputs_may_have_any_shape(shape: tuple[int, ...], encoding: Encoding) -> None:
    z = torch.randn(shape)
    assert encoding.decode(encoding.encode(z), shape, CPU).shape == z.shape
    assert mismatch(encoding, encoding.encode(z), z) is None and sent(encoding.encode(z)) == encoding.num_bytes(shape)
