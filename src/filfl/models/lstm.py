"""A recurrent network for text."""

from dataclasses import dataclass

from torch import Tensor, nn

from filfl.config.schema import Count
from filfl.errors import PluginError
from filfl.models.base import Model


@dataclass(frozen=True, kw_only=True)
class LSTM(Model):
    """LSTM that predicts the next character, LEAF's network for Shakespeare.

    An embedding, the LSTM, and a dense layer on its last step. With 80 classes it has 819,920 weights; with hidden = 64
    and layers = 1, for a laptop, 24,784.
    """

    hidden: Count = 256
    """The number of units per layer."""
    layers: Count = 2
    """The number of LSTM layers."""
    embedding: Count = 8
    """The length of the vector that represents a character."""
    tokens: Count = 80
    """The number of different whole numbers that a sample may contain."""

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(sample_shape) != 1:
            raise PluginError(
                f'model.name = "lstm" needs sequences of whole numbers, such as those of data.name = "shakespeare" '
                f"(got samples of shape {list(sample_shape)})"
            )
        return _LastStep(self, classes)


class _LastStep(nn.Module):
    def __init__(self, options: LSTM, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.tokens, options.embedding)
        self.lstm = nn.LSTM(options.embedding, options.hidden, options.layers, batch_first=True)
        self.dense = nn.Linear(options.hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.lstm(self.embedding(x))
        outputs: Tensor = self.dense(steps[:, -1])
        return outputs
