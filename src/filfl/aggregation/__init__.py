"""Aggregations: the next global model from the updates. To add one, add one file here and one line below."""

from filfl.aggregation.base import Admitted, Aggregation, Memory
from filfl.aggregation.clipping import CenteredClipping, NormClipping
from filfl.aggregation.fedavgm import FedAvgM
from filfl.aggregation.fedopt import FedAdam, FedYogi
from filfl.aggregation.fltrust import FLTrust
from filfl.aggregation.geometric_median import GeometricMedian
from filfl.aggregation.krum import Krum, MultiKrum
from filfl.aggregation.mean import ByExamples, Mean
from filfl.aggregation.median import Median
from filfl.aggregation.server_side import ServerSide, WithServer, WithV
from filfl.aggregation.trimmed_mean import TrimmedMean
from filfl.aggregation.zeno import Zeno

AGGREGATIONS: dict[str, type[Aggregation]] = {
    "mean": Mean,
    "by-examples": ByExamples,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "geometric-median": GeometricMedian,
    "norm-clipping": NormClipping,
    "centered-clipping": CenteredClipping,
    "fltrust": FLTrust,
    "zeno": Zeno,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}

__all__ = ["AGGREGATIONS", "Admitted", "Aggregation", "Memory", "ServerSide", "WithServer", "WithV"]
