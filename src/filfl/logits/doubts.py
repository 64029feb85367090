"""Clients that claimed logits and did not upload the weights for them: how much their next claims count."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

IGNORED_FOR = 10
"""How many filterings ignore a client after its weights did not match its claim."""


@dataclass(frozen=True)
class Doubts:
    """Which clients are doubted at the next filtering.

    A client that was gone when the server asked for its weights may have left for a good reason. It can be kept, but
    its claims do not decide about others until it has uploaded weights that match. A client whose weights did not match
    is ignored for some filterings, and is then doubted like one that was gone.
    """

    filterings: Mapping[int, int] = field(default_factory=dict)
    """The doubted clients, each with the number of filterings that still ignore it."""

    @property
    def ignored(self) -> frozenset[int]:
        return frozenset(k for k, left in self.filterings.items() if left > 0)

    def __contains__(self, k: int) -> bool:
        return k in self.filterings

    def after(
        self, claimed: Collection[int], uploaded: Collection[int], gone: Collection[int], mismatched: Collection[int]
    ) -> "Doubts":
        """The doubts after a filtering, from what each client did in it."""
        served = {k: max(0, left - (k in claimed)) for k, left in self.filterings.items() if k not in uploaded}
        new = {**dict.fromkeys(gone, 0), **dict.fromkeys(mismatched, IGNORED_FOR)}
        return Doubts({**served, **{k: max(left, served.get(k, 0)) for k, left in new.items()}})
