"""Executors of the `Clients` door on one machine, and the run that they serve."""

from filfl.simulation.run import Result, simulate

__all__ = ["Result", "simulate"]
