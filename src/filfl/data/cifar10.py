"""CIFAR-10: colour images of ten kinds of things.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from filfl.data.base import Dataset, deal
from filfl.data.cifar10_files import CLASSES, read_cifar10
from filfl.data.federated import FederatedData
from filfl.data.sources import find_source, not_tested
from filfl.options import Count, Positive, Share
from filfl.rng import SETUP, stream

FILE = "cifar10_subset_10k_2k.npz"
WHAT = (
    "the folder cifar-10-batches-py or cifar-10-batches-bin (from https://www.cs.toronto.edu/~kriz/cifar.html, "
    "unpacked), or an .npz with x_train, y_train, x_test and y_test"
)
MEAN = np.array([0.4914, 0.4822, 0.4465])[:, None, None]
STD = np.array([0.2470, 0.2435, 0.2616])[:, None, None]
"""Of the training images' red, green and blue, as shares of 255."""


@dataclass(frozen=True, kw_only=True)
class Cifar10(Dataset):
    """CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32 in 10 classes, from your own copy."""

    path: str | None = None
    """cifar-10-batches-py, cifar-10-batches-bin, or an .npz; unset is the subset in the folder FILFL_DATA."""
    clients: Count = 200
    """The number of clients."""
    partition: Literal["iid", "dirichlet", "shards"] = "dirichlet"
    """How images are assigned to clients. iid: uniformly. dirichlet: each class is divided among the clients in
    proportions drawn from Dirichlet(alpha). shards: images are sorted by class and cut into clients x shards pieces, of
    which each client gets `shards`."""
    alpha: Positive = 0.5
    """With partition = "dirichlet": how equal clients are. Small: few classes per client and unequal sizes. Large:
    close to iid."""
    shards: Count = 2
    """With partition = "shards": the number of pieces per client. 1 is about one class per client."""
    min_size: Count = 10
    """The smallest number of images per client, before validation. dirichlet moves images from the largest clients to
    reach it; the other partitions are refused if a client has fewer."""
    filtering: Share = 0.01
    """Of the training images, to the server; 0 leaves nothing to filter with."""
    validation: Share = 0.1
    """Of each client's part; 0 is none."""

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, FILE, WHAT)
        images = read_cifar10(source)
        untested = np.flatnonzero(not_tested(images.train[0], images.test[0], source.name))
        data = deal(
            *images.train,
            stream(seed, SETUP, "held-out").permutation(untested),
            clients=self.clients,
            partition=self.partition,
            alpha=self.alpha,
            shards=self.shards,
            min_size=self.min_size,
            test=images.test,
            filtering=self.filtering,
            validation=self.validation,
            seed=seed,
            scale=1 / (255 * STD),
            shift=-MEAN / STD,
        )
        # A subset may lack the last class, and the network should not depend on that.
        return replace(data, classes=CLASSES)
