"""Federated LoRA with client filtering: only the adapters are sent, counted and held per client.

Twelve clients fine-tune a small transformer. Four of them have wrong labels. The transformer is made from a config, so
nothing is downloaded; with your own, `from_pretrained` takes the place of the config.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import filfl

CLIENTS, WRONG = 12, 4
TOKENS, LENGTH, CLASSES = 60, 12, 3
SETTINGS: dict[str, Any] = {
    "rounds": 10,
    "filter.name": "prune",
    "filter.period": 2,
    "selection.k": 4,
    "training.epochs": 2,
    "training.batch": 10,
    "training.lr": 0.2,
}


class Classifier(nn.Module):
    """A frozen transformer with trained adapters and a trained last layer: tokens [m, l] -> logits [m, classes]."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=TOKENS,
            max_position_embeddings=LENGTH,
            num_labels=CLASSES,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.2,  # nothing is pretrained here, and near 0 all texts would look alike
        )
        adapters = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["query", "value"])
        self.transformer = get_peft_model(BertForSequenceClassification(config), adapters)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.transformer(input_ids=tokens).logits
        return logits


def texts(number: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Texts with their class. Most tokens are typical of the class; the others occur in all classes."""
    y = rng.integers(CLASSES, size=number)
    words = TOKENS // (CLASSES + 1)
    typical = rng.integers(words, size=(number, LENGTH)) + words * (1 + y[:, None])
    common = rng.integers(words, size=(number, LENGTH))
    return np.where(rng.random((number, LENGTH)) < 0.6, typical, common), y


def load_data(seed: int = 0) -> filfl.FederatedData:
    """The clients' texts; the last clients have wrong labels. The server has 100 texts of its own to filter with."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(CLIENTS), 40)
    x, y = texts(len(client), rng)
    wrong = client >= CLIENTS - WRONG
    y[wrong] = (y[wrong] + 1) % CLASSES
    return filfl.FederatedData.from_arrays(x, y, client, filtering=texts(100, rng), test=texts(300, rng))


def main() -> None:
    result = filfl.simulate(SETTINGS, data=load_data(), model=Classifier)
    parameters = list(result.model.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    everything = sum(p.numel() for p in parameters)
    first = result.records[0]  # a filter round: every client trains and uploads
    print(f"parameters: {everything:,}, of which {trained:,} are trained")
    print(f"upload per client: {first['uplink_bytes'] / CLIENTS:,.0f} bytes instead of {4 * everything:,}")
    print(f"wrong labels: clients {CLIENTS - WRONG} to {CLIENTS - 1}; filtered in: {result.records[-1]['filtered']}")
    print(f"test accuracy: {first['test_accuracy']:.2f} after one round, {result.accuracy[-1]:.2f} at the end")


if __name__ == "__main__":
    main()
