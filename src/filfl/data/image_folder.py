"""A folder of images of your own."""

from dataclasses import dataclass

from filfl.config.schema import Count, Share
from filfl.data.base import ByClient
from filfl.data.federated import FederatedData
from filfl.data.images import ImageFolder
from filfl.data.sources import find_source


@dataclass(frozen=True, kw_only=True)
class Images(ByClient):
    """A folder of images of your own, client/class/file.png. See docs/your-data.md."""

    path: str | None = None
    """The folder."""
    client_table: str | None = None
    """A .csv or .parquet file with the columns file (the path inside the folder) and client, for images in
    class/file.png."""
    size: Count | None = None
    """The height and width to which images are resized. Unset: all images must have the same size."""
    test: Share | None = None
    """The share of each client's samples in the test set. Unset: 0.2; with `trusted`, 0.25 of the trusted clients'."""
    filtering: Share | None = None
    """The share of each client's samples outside the test set in the filtering set; 0 leaves nothing to filter with.
    Unset: 0.1; with `trusted`, 0.5 of the trusted clients'."""

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, (), "a folder with client/class/file.png")
        return self.hold_out(*ImageFolder(source, self.client_table, self.size).read(), self.test, seed)
