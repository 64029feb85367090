"""What the server can ask clients about their data. A new query is one file here and one line below."""

from filfl.core.queries.base import Batches, Query
from filfl.core.queries.gradient import GradientQuery
from filfl.core.queries.loss import LossQuery

QUERIES: dict[str, type[Query]] = {"loss": LossQuery, "gradient": GradientQuery}

__all__ = ["QUERIES", "Batches", "GradientQuery", "LossQuery", "Query"]
