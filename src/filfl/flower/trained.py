"""What an app sends of its model: everything but the frozen parameters (see `filfl.weights`)."""

from flwr.app import ArrayRecord
from torch import nn

from filfl.errors import PluginError
from filfl.weights import Layout


def get_trained(model: nn.Module) -> ArrayRecord:
    """The trained parameters and the buffers of a model, without its frozen parameters. For a model without frozen
    parameters, this is `ArrayRecord(model.state_dict())`."""
    state = model.state_dict()
    return ArrayRecord({entry.name: state[entry.name] for entry in Layout.of(model).entries})


def set_trained(model: nn.Module, arrays: ArrayRecord) -> None:
    """Load arrays into a model. Only frozen parameters may be missing; they stay as they are."""
    found = model.load_state_dict(arrays.to_torch_state_dict(), strict=False)
    if missing := [name for name in found.missing_keys if name not in Layout.of(model).frozen]:
        raise PluginError(f"the arrays do not fit the model: key {missing[0]} is missing")
    if found.unexpected_keys:
        raise PluginError(f"the arrays do not fit the model: key {found.unexpected_keys[0]} is not in the model")
