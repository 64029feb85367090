"""Federated learning on one machine: `filfl.simulate`."""

from filfl.simulation.run import Result, simulate

__all__ = ["Result", "simulate"]
