"""The server's filtering set V for aggregations that evaluate or train models on it."""

from dataclasses import dataclass

from filfl.errors import PluginError
from filfl.filtering.filtering_set import FilteringSet
from filfl.simulation.executors.serial import LocalTraining
from filfl.weights import Weights


@dataclass(frozen=True)
class TrainingOnV:
    """Losses on V, and training on V with the settings of the clients. It happens in this process, one sample batch
    after another, so that it does not depend on the executor."""

    V: FilteringSet
    training: LocalTraining

    def loss(self, weights: Weights) -> float:
        return self.V.loss(weights)

    def trained(self, t: int, w_t: Weights) -> Weights:
        try:
            with self.V.networks.network() as net:
                update = self.training.update(t, None, net, w_t, self.V.samples, self.V.loss_function)
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(
                f"training on the server's filtering set raised {type(error).__name__}: {error}; choose another "
                "aggregation.name, or change filter.size or training.batch"
            ) from error
        assert isinstance(update.weights, Weights)
        return update.weights
