"""The user's own arrays."""

from dataclasses import dataclass

from filfl.data.base import Dataset
from filfl.data.federated import FederatedData
from filfl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Arrays(Dataset):
    """Your own arrays, given from Python: filfl.simulate(..., data=FederatedData.from_arrays(x, y, client_ids))."""

    def read(self, seed: int) -> FederatedData:
        raise ConfigError(
            'data.name = "arrays" stands for data given from Python: call filfl.simulate(config, data=...), '
            "or name another dataset (see `filfl list`)"
        )
