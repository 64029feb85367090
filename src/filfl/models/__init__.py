"""Networks. To add a model, add one file here and one line below."""

from filfl.models.base import Model
from filfl.models.cnn import LeafCNN, SmallCNN
from filfl.models.linear import Linear, Logistic
from filfl.models.lstm import LSTM
from filfl.models.mlp import MLP
from filfl.models.own import OwnModel
from filfl.models.resnet import ResNet18, SmallResNet

MODELS: dict[str, type[Model]] = {
    "mlp": MLP,
    "logistic": Logistic,
    "lstm": LSTM,
    "linear": Linear,
    "leaf-cnn": LeafCNN,
    "small-cnn": SmallCNN,
    "resnet18": ResNet18,
    "small-resnet": SmallResNet,
    "own": OwnModel,
}

__all__ = ["MODELS", "Model"]
