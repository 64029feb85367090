"""The messages of the logits transport: the server's request and a client's reply."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from filfl.availability.base import NO_IDS, Ids
from filfl.evaluation import Samples
from filfl.logits.encoding import EncodedLogits, Encoding


@dataclass(frozen=True)
class LogitRequest:
    """A request for clients' logits on V in one round.

    V is public and has no targets. A client receives it once and stores it under its `digest`.
    """

    V: Samples
    digest: str
    new_recipients: frozenset[int]
    """Clients that have not received V yet."""
    rows: Tensor | None
    """The samples of V that the request is about, the same for all clients; None is all of V."""
    shape: tuple[int, ...]
    """Shape of the logits before they are encoded: the number of samples, then the model's outputs for one sample."""
    encoding: Encoding

    @property
    def samples(self) -> Samples:
        return self.V if self.rows is None else self.V.at(self.rows)


@dataclass(frozen=True)
class LogitReply:
    """The reply of a client that trained and kept its weights."""

    logits: EncodedLogits
    """The outputs of its trained model for the samples of the request."""
    num_examples: int
    train_loss: float
    resent: bool = False
    """Whether the request was sent twice, because the client no longer had V."""


@dataclass(frozen=True)
class Recipients:
    """The clients that have received V, and the digest of that V."""

    digest: str = ""
    ids: Ids = field(default_factory=lambda: NO_IDS)

    def of(self, digest: str) -> Ids:
        """The clients that have this V."""
        return self.ids if self.digest == digest else NO_IDS

    def adding(self, digest: str, ids: list[int]) -> "Recipients":
        return Recipients(digest, np.union1d(self.of(digest), np.array(ids, dtype=np.int64)))
