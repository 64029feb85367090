"""Federated data and its sources. A new dataset is one file here and one line below."""

from filfl.data.arrays import Arrays
from filfl.data.base import Dataset
from filfl.data.cifar10 import Cifar10
from filfl.data.digits import Digits, Mnist5k
from filfl.data.federated import FederatedData
from filfl.data.femnist import Femnist
from filfl.data.hub import Hub
from filfl.data.image_folder import Images
from filfl.data.ridge import Ridge
from filfl.data.saved import Saved
from filfl.data.shakespeare import Shakespeare
from filfl.data.synthetic import Synthetic
from filfl.data.table import Table

DATASETS: dict[str, type[Dataset]] = {
    "digits": Digits,
    "mnist5k": Mnist5k,
    "femnist": Femnist,
    "shakespeare": Shakespeare,
    "cifar10": Cifar10,
    "synthetic": Synthetic,
    "ridge": Ridge,
    "table": Table,
    "images": Images,
    "saved": Saved,
    "hub": Hub,
    "arrays": Arrays,
}

__all__ = ["DATASETS", "Dataset", "FederatedData"]
