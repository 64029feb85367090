"""A recurrent network for text."""

from dataclasses import dataclass

from torch import Tensor, nn

from filfl.errors import PluginError
from filfl.models.base import Model
from filfl.options import Count


@dataclass(frozen=True, kw_only=True)
class LSTM(Model):
    """LSTM for the next character, LEAF's for Shakespeare: 2 layers of 256; for a laptop 1 layer of 64.

    An embedding, `layers` of `hidden` units, and one dense layer on the last step. `tokens` is how many different
    numbers a sample may hold. With 80 classes it has 819,920 parameters; with hidden = 64 and layers = 1, 24,784.
    """

    hidden: Count = 256
    layers: Count = 2
    embedding: Count = 8
    tokens: Count = 80

    def build(self, sample_shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(sample_shape) != 1:
            raise PluginError(
                f'model.name = "lstm" reads sequences of whole numbers, such as those of data.name = "shakespeare" '
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
