"""What a client minimises. To add an algorithm, add one file here and one line below."""

from filfl.algorithms.base import Algorithm
from filfl.algorithms.fedavg import FedAvg
from filfl.algorithms.fedprox import FedProx

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
}

__all__ = ["ALGORITHMS", "Algorithm"]
