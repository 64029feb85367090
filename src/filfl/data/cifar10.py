"""CIFAR-10: colour images in ten classes.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009.
"""

from dataclasses import dataclass, replace

import numpy as np

from filfl.config.schema import Count, Share
from filfl.data.base import Partitioned
from filfl.data.cifar10_files import CLASSES, read_cifar10
from filfl.data.federated import FederatedData
from filfl.data.sources import find_source, not_in_test
from filfl.rng import SETUP, stream

FILE = "cifar10_subset_10k_2k.npz"
EXPECTED = (
    "the folder cifar-10-batches-py or cifar-10-batches-bin (from https://www.cs.toronto.edu/~kriz/cifar.html, "
    "unpacked), or an .npz with x_train, y_train, x_test and y_test"
)
MEAN = np.array([0.4914, 0.4822, 0.4465])[:, None, None]
STD = np.array([0.2470, 0.2435, 0.2616])[:, None, None]
"""Mean and standard deviation of the red, green and blue of the training images, divided by 255."""


@dataclass(frozen=True, kw_only=True)
class Cifar10(Partitioned):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32 in 10 classes, from your own copy."""

    path: str | None = None
    """cifar-10-batches-py, cifar-10-batches-bin, or an .npz. Unset: the subset in the folder FILFL_DATA."""
    clients: Count = 200
    """The number of clients."""
    filtering: Share = 0.01
    """The share of the training images that the server filters with. 0 leaves no filtering set."""

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, FILE, EXPECTED)
        images = read_cifar10(source)
        kept = np.flatnonzero(not_in_test(images.train[0], images.test[0], source.name))
        order = stream(seed, SETUP, "held-out").permutation(kept)
        data = self.split(*images.train, order, images.test, seed, scale=1 / (255 * STD), shift=-MEAN / STD)
        # The number of outputs must not depend on whether a subset has images of the last class.
        return replace(data, classes=CLASSES)
