"""How often filters keep an attacker that they visit first. It prints the table of docs/flower.md.

python benchmarks/first_client.py

Digits, 10 clients, an MLP, K = 3, a filtering in every round. The attacker is the client that DGF and RGF visit first
in round 1 or in round 3. It sends the same number for all weights, or what it trained with its hidden units in another
order: a good model that cannot be averaged with others.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

import filfl
from filfl.attacks import Attack
from filfl.availability.base import Ids
from filfl.report.formatting import markdown_rows
from filfl.rng import stream

PIXELS, HIDDEN, CLASSES = 64, 16, 10
ROUNDS, SEEDS = (1, 3), range(4)
CLIENTS = 10


@dataclass(frozen=True, kw_only=True)
class VisitedFirst(Attack):
    """The client that is visited first in round `at` sends `value` for all weights."""

    at: int
    value: float = 0.0

    def bad(self, num_clients: int, seed: int) -> Ids:
        return stream(seed, self.at, "shuffle").permutation(num_clients)[:1]

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        return torch.full_like(w, self.value)


@dataclass(frozen=True, kw_only=True)
class Reordered(VisitedFirst):
    """It sends what it trained, with the hidden units in the opposite order."""

    def sent(self, w: Tensor, w_t: Tensor) -> Tensor:
        sizes = (PIXELS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES)
        first, bias, last, rest = w.split(sizes)
        parts = (first.view(HIDDEN, PIXELS).flip(0), bias.flip(0), last.view(CLASSES, HIDDEN).flip(1), rest)
        return torch.cat([part.flatten() for part in parts])


ATTACKS: dict[str, dict[str, Any]] = {
    "0.1": {"attack.name": "first_client:VisitedFirst", "attack.value": 0.1},
    "1": {"attack.name": "first_client:VisitedFirst", "attack.value": 1.0},
    "10": {"attack.name": "first_client:VisitedFirst", "attack.value": 10.0},
    "its units in another order": {"attack.name": "first_client:Reordered"},
}
FILTERS: dict[str, dict[str, Any]] = {
    "`dgf`, zero": {"filter.name": "dgf", "filter.empty": "zero"},
    "`dgf`": {"filter.name": "dgf"},
    "`dgf`, at least K": {"filter.name": "dgf", "filter.least": 3},
    "`rgf`, zero": {"filter.name": "rgf", "filter.empty": "zero"},
    "`rgf`": {"filter.name": "rgf"},
    "`local-search`": {"filter.name": "local-search"},
    "`prune`": {"filter.name": "prune"},
}


def outcome(attack: Mapping[str, Any], filter: Mapping[str, Any]) -> str:
    """In how many filterings the attacker was refused, kept, and kept alone."""
    kept = alone = refused = 0
    for at, seed in product(ROUNDS, SEEDS):
        config: dict[str, Any] = {
            "rounds": at,
            "seed": seed,
            "data.clients": CLIENTS,
            "selection.k": 3,
            "filter.period": 1,
        }
        config |= {"model.hidden": [HIDDEN], "training.epochs": 4, "training.lr": 0.2, "filter.honest_gain": False}
        run = filfl.simulate({**config, **attack, "attack.at": at, **filter}, progress=False, say=lambda text: None)
        record = run.records[at - 1]
        attacker = record["considered"][0]
        refused += str(attacker) in record["refused"]
        kept += attacker in record["filtered"]
        alone += record["filtered"] == [attacker]
    return ", ".join([str(kept), *([f"{alone} alone"] if alone else []), *([f"{refused} refused"] if refused else [])])


def main() -> None:
    rows: list[list[str]] = []
    for name, attack in ATTACKS.items():
        rows.append([name, *(outcome(attack, filter) for filter in FILTERS.values())])
        print(rows[-1], file=sys.stderr)
    print("\n".join(markdown_rows(["it sends", *FILTERS], rows)))


if __name__ == "__main__":
    main()
