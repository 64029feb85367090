"""The sections of a config that are not plug-ins: their options, types, defaults and ranges."""

from dataclasses import dataclass
from typing import Annotated, Literal

from filfl.options import Count, Fraction, NonNegative, Positive, Range, Whole


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """Client filtering: how, on what, and when."""

    name: str = "dgf"
    reward: Literal["average", "ensemble"] = "average"
    """How a set is judged: by the loss of its averaged weights, or, as a cheaper stand-in, by the loss of its clients'
    averaged outputs, for which every client's weights run over the filtering set once."""
    verify: Whole = 0
    """With the ensemble: how many of the sets that the filter found are judged by their averaged weights, beside
    keeping all; the best of them is S^f. 0 trusts the ensemble."""
    transport: Literal["models", "logits"] = "models"
    """What clients send in a filter round: what they trained to, or, for the ensemble, only what that says to the
    filtering set, whose inputs are public then; those who are chosen send their weights afterwards (docs/logits.md)."""
    precision: Literal["float32", "float16", "int8"] = "float32"
    """Of the logits that are sent: 4, 2 or 1 byte each (int8: and 4 a sample)."""
    part: Count | None = None
    """How many samples of the filtering set the logits of a round are about, others in every round; unset is all."""
    top: Count | None = None
    """Of how many classes a sample the logits say something, the most likely ones; unset is all."""
    data: Literal["server", "file", "variable", "federated"] = "server"
    """On what: samples that the server holds; those of a file (`path`); the validation data of a random client,
    another in every filtering; or the training data of every available client, weighted by its size, for which every
    candidate is sent to all of them (Eq. (2))."""
    path: str | None = None
    """An .npz with x and y like the clients', or, where the data is text, a text file."""
    size: Count | None = None
    """m: how many of the server's filtering samples are used; unset is all of them."""
    period: Count = 5
    """h: filter at least every h rounds; 1 is every round."""
    cap: Count | None = None
    """n: at most so many of the available clients are considered; unset is no limit."""
    when: Literal["algorithm-1", "figure-2"] = "algorithm-1"
    empty: Literal["zero", "global"] = "zero"
    """R of the empty set: 0, or the reward of the current global model."""
    optimum: bool = False
    """Whether every filter round also tries all subsets, so that its record says how good the best one is
    (`reward_optimum`). Of at most 20 clients; it changes nothing else and is not counted in `evaluations`."""

    def contradictions_of_transport(self) -> list[str]:
        """What `transport` cannot go together with."""
        if self.transport == "models":
            given = {"precision": self.precision != "float32", "part": self.part, "top": self.top}
            return [
                f'filter.{option} is about logits that are sent: set filter.transport to "logits", or take it away'
                for option, there in given.items()
                if there
            ]
        logits, problems = 'filter.transport = "logits"', []
        if self.reward != "ensemble":
            problems.append(f'{logits} goes by the ensemble of the clients\' outputs: write filter.reward = "ensemble"')
        if self.verify:
            problems.append(
                f"{logits} leaves the server without the weights to verify sets by (got filter.verify = "
                f'{self.verify}): set filter.verify to 0, or filter.transport to "models"'
            )
        if self.optimum:
            problems.append(
                f"{logits} leaves the server without the weights to judge all subsets by: take filter.optimum away, or "
                'set filter.transport to "models"'
            )
        if self.part and self.size and self.part > self.size:
            problems.append(f"filter.part must be between 1 and filter.size = {self.size} (got {self.part})")
        return problems


@dataclass(frozen=True, kw_only=True)
class Training:
    """Local SGD: E epochs or steps, and the step size of every round."""

    epochs: Count | None = None
    """Passes over the client's data; 1 when neither epochs nor steps is set."""
    steps: Count | None = None
    """Batches, instead of epochs."""
    batch: Count = 16
    lr: Positive = 0.1
    schedule: Literal["constant", "step", "inverse"] = "constant"
    """constant: lr; step: lr * factor^floor(t / every); inverse: beta / t. t is the round."""
    factor: Positive | None = None
    every: Count | None = None
    beta: Positive | None = None
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0

    def lr_at(self, t: int) -> float:
        """eta_t, the step size in round t."""
        if self.schedule == "step":
            return self.lr * float((self.factor or 1.0) ** (t // (self.every or 1)))
        return (self.beta or 1.0) / t if self.schedule == "inverse" else self.lr


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """How often the global model is tested; the last round always is."""

    every: Count = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How often a run can be resumed from, and how many checkpoints are kept."""

    every: Count = 1
    keep: Annotated[int, Range(at_least=2)] = 2


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where the clients run."""

    mode: Literal["auto", "serial", "vectorized", "processes"] = "auto"
    """serial: one client after the other. vectorized: many clients in one batched computation. processes: in worker
    processes. auto chooses by the model, never by how busy the machine is."""
    workers: Count | None = None
    """How many clients train, and how many candidates of a filter are judged, at a time; unset is one a core. The
    result does not depend on it."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    memory: Positive | None = None
    """GB that the trained weights of one round may take; more of them lie in a temporary file (in TMPDIR). Unset is no
    limit. On the CPU only."""
    half: bool = False
    """Whether weights in that file are kept in half precision: half the room, three digits."""
