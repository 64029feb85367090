"""Data that was saved from Python."""

from dataclasses import dataclass

from filfl.data.base import Dataset
from filfl.data.federated import FederatedData
from filfl.data.sources import find_source


@dataclass(frozen=True, kw_only=True)
class Saved(Dataset):
    """A folder that FederatedData.save wrote. Its clients and its split are those that were saved."""

    path: str | None = None
    """The folder."""

    def read(self, seed: int) -> FederatedData:
        return FederatedData.open(find_source(self.path, (), "a folder that FederatedData.save wrote"))
