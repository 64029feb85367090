"""FilFL in a Flower federation: `pip install filfl[flower]`.

strategy = FilFL(strategy=FedAvg(), filter="dgf", k=5, h=5, evaluate=evaluate)
result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)
"""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ImportError("filfl.flower needs Flower; run pip install 'filfl[flower]'")

from filfl.filtering.filtering_set import FilteringSet
from filfl.flower.client_logits import keep_weights
from filfl.flower.client_queries import add_queries
from filfl.flower.strategy import FilFL
from filfl.flower.trained import get_trained, set_trained

__all__ = ["FilFL", "FilteringSet", "add_queries", "get_trained", "keep_weights", "set_trained"]
