"""The user's own arrays."""

from dataclasses import dataclass

from filfl.data.base import Dataset
from filfl.data.federated import FederatedData
from filfl.errors import only_from_python


@dataclass(frozen=True, kw_only=True)
class Arrays(Dataset):
    """Your own arrays, given from Python: filfl.simulate(..., data=FederatedData.from_arrays(x, y, client_ids))."""

    def read(self, seed: int) -> FederatedData:
        raise only_from_python("data.name", "arrays", "data")
