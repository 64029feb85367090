"""Federated learning on one machine: `filfl.simulate`, its `Result`, `filfl.load`, which reads it again, and
`filfl.verify`, which recomputes some of its rounds."""

from filfl.simulation.result import Result
from filfl.simulation.run import simulate
from filfl.simulation.stored import load
from filfl.simulation.verification import Verification, verify

__all__ = ["Result", "Verification", "load", "simulate", "verify"]
