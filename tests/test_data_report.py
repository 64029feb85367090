"""The description of a dataset."""

import numpy as np
import pytest

from filfl import FederatedData
from filfl.report.dataset import facts, label_counts, label_skew


def test_label_counts_and_skew() -> None:
    y = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    data = FederatedData.from_arrays(np.zeros((8, 1)), y, [0, 0, 0, 0, 1, 1, 1, 1], test=([[0.0]], [0]), filtering=0.0)
    assert label_counts(data).tolist() == [[3, 1, 0], [0, 2, 2]]
    # All clients: 3/8, 3/8, 2/8. Client 0 has 3/4, 1/4, 0: half of 3/8 + 1/8 + 2/8; client 1 likewise.
    assert label_skew(label_counts(data)) == pytest.approx(3 / 8)
    assert facts(data)["samples per client"] == "4 / 4 / 4 (min / median / max)"


def test_numeric_targets_have_no_label_skew() -> None:
    data = FederatedData.from_arrays(np.zeros((8, 1)), np.linspace(0, 1, 8), [0] * 8, test=0.5)
    assert "label skew" not in facts(data) and facts(data)["classes"] == "none (numeric targets)"
