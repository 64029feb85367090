"""Aggregations: the next global model from the updates. To add one, add one file here and one line below."""

from filfl.aggregation.base import Admitted, Aggregation, Memory
from filfl.aggregation.mean import ByExamples, Mean

AGGREGATIONS: dict[str, type[Aggregation]] = {
    "mean": Mean,
    "by-examples": ByExamples,
}

__all__ = ["AGGREGATIONS", "Admitted", "Aggregation", "Memory"]
