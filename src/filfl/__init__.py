"""FilFL: client filtering for optimized client participation in federated learning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from filfl.config.config import Config
    from filfl.data import FederatedData
    from filfl.errors import FilflError
    from filfl.filtering import Filtering, dgf, keep_all, local_search, opt, rgf
    from filfl.rng import stream
    from filfl.runs import STOP, EarlyStopping, Stop
    from filfl.simulation import Result, simulate

__version__ = "0.1.0"

_HOMES = {
    "STOP": "filfl.runs",
    "Config": "filfl.config.config",
    "EarlyStopping": "filfl.runs",
    "FederatedData": "filfl.data",
    "FilflError": "filfl.errors",
    "Filtering": "filfl.filtering",
    "Result": "filfl.simulation",
    "Stop": "filfl.runs",
    "dgf": "filfl.filtering",
    "keep_all": "filfl.filtering",
    "local_search": "filfl.filtering",
    "opt": "filfl.filtering",
    "rgf": "filfl.filtering",
    "simulate": "filfl.simulation",
    "stream": "filfl.rng",
}

__all__ = [
    "STOP",
    "Config",
    "EarlyStopping",
    "FederatedData",
    "FilflError",
    "Filtering",
    "Result",
    "Stop",
    "dgf",
    "keep_all",
    "local_search",
    "opt",
    "rgf",
    "simulate",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `import filfl` and `filfl --help` must not wait for torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'filfl' has no attribute {name!r}")
