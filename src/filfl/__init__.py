"""FilFL: client filtering for optimized client participation in federated learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filfl.commands.compare import compare
    from filfl.config.config import Config
    from filfl.data import FederatedData
    from filfl.errors import FilflError
    from filfl.filtering import Filtering, dgf, keep_all, local_search, opt, rgf
    from filfl.report.comparison import Comparison
    from filfl.rng import stream
    from filfl.runs import STOP, EarlyStopping, Stop
    from filfl.simulation import Result, Verification, load, simulate, verify

__version__ = "0.2.0"

_HOMES = {
    "STOP": "filfl.runs",
    "Comparison": "filfl.report.comparison",
    "Config": "filfl.config.config",
    "EarlyStopping": "filfl.runs",
    "FederatedData": "filfl.data",
    "FilflError": "filfl.errors",
    "Filtering": "filfl.filtering",
    "Result": "filfl.simulation",
    "Stop": "filfl.runs",
    "Verification": "filfl.simulation",
    "compare": "filfl.commands.compare",
    "dgf": "filfl.filtering",
    "keep_all": "filfl.filtering",
    "load": "filfl.simulation",
    "local_search": "filfl.filtering",
    "opt": "filfl.filtering",
    "rgf": "filfl.filtering",
    "simulate": "filfl.simulation",
    "stream": "filfl.rng",
    "verify": "filfl.simulation",
}

__all__ = [
    "STOP",
    "Comparison",
    "Config",
    "EarlyStopping",
    "FederatedData",
    "FilflError",
    "Filtering",
    "Result",
    "Stop",
    "Verification",
    "compare",
    "dgf",
    "keep_all",
    "load",
    "local_search",
    "opt",
    "rgf",
    "simulate",
    "stream",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `import filfl` and `filfl --help` must not wait for torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'filfl' has no attribute {name!r}")
