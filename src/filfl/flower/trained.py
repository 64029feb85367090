"""What an app sends of its model: everything but the frozen parameters (see `filfl.weights`)."""

from flwr.app import ArrayRecord
from torch import nn

from filfl.errors import PluginError
from filfl.weights import is_frozen


def get_trained(model: nn.Module) -> ArrayRecord:
    """The trained parameters and the buffers of a model, without its frozen parameters. For a model without frozen
    parameters, this is `ArrayRecord(model.state_dict())`."""
    frozen = _frozen(model)
    return ArrayRecord({name: value for name, value in model.state_dict().items() if name not in frozen})


def set_trained(model: nn.Module, arrays: ArrayRecord) -> None:
    """Load arrays into a model. Only frozen parameters may be missing; they stay as they are."""
    found = model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
    if missing := [name for name in found.missing_keys if name not in _frozen(model)]:
        raise PluginError(f"the arrays do not fit the model: key {missing[0]} is missing")
    if found.unexpected_keys:
        raise PluginError(f"the arrays do not fit the model: key {found.unexpected_keys[0]} is not in the model")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, value in model.state_dict(keep_vars=True).items() if is_frozen(value)}
