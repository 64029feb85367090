"""Networks. A new model is one file here and one line below."""

from filfl.models.base import Model
from filfl.models.logistic import Logistic
from filfl.models.lstm import LSTM
from filfl.models.mlp import MLP
from filfl.models.own import OwnModel

MODELS: dict[str, type[Model]] = {
    "mlp": MLP,
    "logistic": Logistic,
    "lstm": LSTM,
    "own": OwnModel,
}

__all__ = ["MODELS", "Model"]
