"""Whether a model can be batched over clients: two clients train together, and the result is compared with training
them one by one."""

import re
import warnings
from dataclasses import replace

from torch.nn.modules.batchnorm import _BatchNorm

from filfl.core.clients import Update
from filfl.data import FederatedData
from filfl.evaluation import Loss
from filfl.simulation.executors.serial import LocalTraining, SerialClients
from filfl.simulation.executors.vectorized import VectorizedClients
from filfl.weights import FlatModel, Weights

TOLERANCE = 1e-2
"""Largest distance between the two results, relative to the distance trained: rounding is far below, a wrong batch far
above."""
STEPS = 2


def why_not_batched(data: FederatedData, model: FlatModel, loss: Loss, training: LocalTraining) -> str | None:
    """Why this model and this loss cannot be batched over clients; None where they can."""
    if any(isinstance(module, _BatchNorm) for module in model.module.modules()):
        return "BatchNorm computes its statistics over a whole batch, and stores them for one client at a time"
    sizes = data.num_train
    ids = sorted({int(sizes.argmin()), int(sizes.argmax())})  # of very different sizes, so that batches are padded
    short = replace(training, options=replace(training.options, epochs=None, steps=STEPS))
    start = model.weights()
    alone = SerialClients(data, model, loss, short).train(1, ids, start)
    together = VectorizedClients(data, model, loss, short, threads=1)
    try:
        with warnings.catch_warnings():
            # torch computes an operator without a batched form one by one, with a warning.
            warnings.simplefilter("error")
            batched = together.train_block(1, ids, start)
    except Exception as error:
        return _reason(error)
    finally:
        together.close()
        model.load(start)
    same = all(isinstance(reply, Update) and _agree(batched[k], reply, start) for k, reply in alone.items())
    return None if same else "batched over clients, training gives other weights (is the loss a mean over the samples?)"


def _reason(error: Exception) -> str:
    """The reason in a few words, from one of torch's long messages."""
    text = str(error)
    if "randomness" in text:
        return "it draws random numbers in training (dropout)"
    if "data-dependent control flow" in text:
        return "its control flow depends on the data (an `if` on a tensor, or .item())"
    if missing := re.search("batching rule for ([\\w:]+)", text):
        return f"torch has no batched form of {missing[1]}"
    return f"{type(error).__name__}: {text.splitlines()[0].rstrip('.') if text else 'no reason given'}"


def _agree(one: Update, other: Update, start: Weights) -> bool:
    assert isinstance(one.weights, Weights)
    assert isinstance(other.weights, Weights)
    trained = (other.weights.vector - start.vector).norm()
    same_weights = bool((one.weights.vector - other.weights.vector).norm() <= TOLERANCE * trained)
    return same_weights and abs(one.train_loss - other.train_loss) <= TOLERANCE * abs(other.train_loss)
