"""Federated learning on one machine: `filfl.simulate`, its `Result`, and `filfl.load`, which reads it again."""

from filfl.simulation.result import Result
from filfl.simulation.run import simulate
from filfl.simulation.stored import load

__all__ = ["Result", "load", "simulate"]
