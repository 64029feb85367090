"""Handwritten digits of 8 x 8 pixels, from scikit-learn."""

from dataclasses import dataclass

import numpy as np

from filfl.data.base import Images, Labels, Pooled


@dataclass(frozen=True, kw_only=True)
class Digits(Pooled):
    """1,797 digits of 8 x 8 pixels from scikit-learn, without a download: the smallest real dataset."""

    def arrays(self) -> tuple[Images, Labels, float]:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64), 1 / 16
