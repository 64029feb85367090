"""A table of your own."""

from dataclasses import dataclass
from typing import Literal

from filfl.config.schema import Share
from filfl.data.base import ByClient
from filfl.data.encoding import encode
from filfl.data.federated import FederatedData
from filfl.data.frames import read_columns
from filfl.data.sources import find_source
from filfl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Table(ByClient):
    """A table of your own, one row per sample: a .csv or .parquet file with a column for the client and one for the
    target. See docs/your-data.md."""

    path: str | None = None
    """The .csv or .parquet file."""
    client: str | None = None
    """The column with the client of each row: names or whole numbers."""
    target: str | None = None
    """The column to predict."""
    features: tuple[str, ...] | None = None
    """The columns to use as inputs. Unset: all others. Numbers become one input; texts and truth values become one
    input per category."""
    task: Literal["classification", "regression"] | None = None
    """Whether the target is a class or a number. Unset: a number if it is floating-point, otherwise a class."""
    missing: Literal["error", "drop", "fill"] = "error"
    """error: missing values are refused. drop: their rows are left out. fill: a number is replaced by the median of its
    column, and all inputs of a category are 0."""
    standardise: bool = True
    """Subtract the mean of every column of numbers, and of a numeric target, and divide by the standard deviation."""
    test: Share | None = None
    """The share of each client's samples in the test set. Unset: 0.2; with `trusted`, 0.25 of the trusted clients'."""
    filtering: Share | None = None
    """The share of each client's samples outside the test set in the filtering set; 0 leaves nothing to filter with.
    Unset: 0.1; with `trusted`, 0.5 of the trusted clients'."""

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, (), "a .csv or .parquet file")
        if self.client is None or self.target is None:
            unset = [f"data.{key}" for key in ("client", "target") if getattr(self, key) is None]
            columns = ", ".join(read_columns(source))
            raise ConfigError(f"{' and '.join(unset)} must be set to columns of {source}, which has {columns}")
        encoding, x, y, owners = encode(source, self.client, self.target, self.features, self.task, self.missing)
        data = self.hold_out(x, y, owners, self.test, seed)
        return data.with_encoding(encoding, self.standardise)
