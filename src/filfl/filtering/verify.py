"""What a filter found on a surrogate, checked by the reward that counts."""

from collections.abc import Sequence

from filfl.filtering.base import Client, Reward, expect


def verified(
    found: Sequence[frozenset[Client]], clients: Sequence[Client], reward: Reward[Client], most: int
) -> frozenset[Client]:
    """The best by `reward` of the first `most` sets that were found, and of keeping all.

    `found` is the filter's own set, then its runners-up. Of equals the earlier: keeping all has to be better.
    """
    sets = [*found[:most], frozenset(clients)]
    expect(reward, iter(sets))
    return max(sets, key=reward)
