"""Data given from Python."""

from dataclasses import dataclass, field
from typing import ClassVar

from filfl.config.schema import NOT_AN_OPTION
from filfl.data.base import Dataset
from filfl.data.federated import FederatedData


@dataclass(frozen=True, kw_only=True)
class Arrays(Dataset):
    """Your own arrays: filfl.simulate(..., data=FederatedData.from_arrays(x, y, client_ids))."""

    name: ClassVar[str] = "arrays"
    data: FederatedData | None = field(default=None, repr=False, compare=False, metadata=NOT_AN_OPTION)

    def read(self, seed: int) -> FederatedData:
        assert self.data is not None  # see Config.require_objects
        return self.data
