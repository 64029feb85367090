"""What an aggregation can use of the server beside the updates: the filtering set V, and what of a model is trained."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

from filfl.aggregation.base import Aggregation
from filfl.config.schema import NOT_AN_OPTION
from filfl.errors import PluginError
from filfl.weights import Weights

if TYPE_CHECKING:
    from filfl.config.config import Config


class ServerData(Protocol):
    """The server's filtering set V."""

    def loss(self, weights: Weights, /) -> float:
        """The loss on V, as the reward of a filter has it."""
        ...

    def trained(self, t: int, w_t: Weights, /) -> Weights:
        """w_t after training on V as a client trains in round t."""
        ...


@dataclass(frozen=True)
class ServerSide:
    """The server of a run."""

    num_trained: int | None = None
    """The number of weights that SGD changes, which are the first of a vector; None is all. The others are statistics
    such as those of BatchNorm: of them only means are meaningful, since a variance must not become negative."""
    V: ServerData | None = None

    def trained(self, vector: Tensor) -> Tensor:
        """The part of a vector of weights that SGD changes, as a view."""
        return vector[: self.num_trained]


@dataclass(frozen=True, kw_only=True)
class WithServer(Aggregation):
    """An aggregation that uses more of the server than the updates."""

    server: ServerSide = field(default=ServerSide(), metadata=NOT_AN_OPTION)

    def on(self, server: ServerSide) -> Aggregation:
        return replace(self, server=server)


@dataclass(frozen=True, kw_only=True)
class WithV(WithServer):
    """An aggregation that uses the server's filtering set V, with any filter and without one."""

    uses_V: ClassVar[bool] = True

    @property
    def V(self) -> ServerData:
        if self.server.V is None:
            raise PluginError(f"{type(self).__name__} needs the server's filtering set; see docs/extending.md")
        return self.server.V

    def problems(self, config: "Config") -> list[str]:
        if not config.filter.judged_by_clients:
            return []
        return [
            f'aggregation.name = "{config.table()["aggregation"]["name"]}" needs a filtering set on the server, but '
            f'that of filter.data = "{config.filter.data}" is on clients; set filter.data to "server" or "file"'
        ]
