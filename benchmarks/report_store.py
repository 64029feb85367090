"""Synthetic run directories of any size, to measure reports with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from filfl import FederatedData
from filfl.comparison.plan import PLAN
from filfl.config.config import Config
from filfl.core.server import Record
from filfl.runs.client_table import ClientTable
from filfl.runs.files import to_json
from filfl.runs.seal import CLIENTS, CONFIG, MODEL, RECORDS, TIMES, write_summary

ARMS = {"fedavg": "none", "filfl-dgf": "dgf", "filfl-rgf": "rgf"}
NOISY = 0.3


@dataclass(frozen=True)
class Size:
    """The size of the runs."""

    seeds: int = 3
    rounds: int = 500
    clients: int = 200
    available: int = 100
    k: int = 10
    period: int = 5


def write_comparison(place: Path, size: Size) -> Path:
    """Write a finished comparison of three arms, as `filfl compare` does."""
    for arm, filter_name in ARMS.items():
        for seed in range(size.seeds):
            write_run(place / arm / f"seed-{seed}", arm, filter_name, seed, size)
    plan = {
        "title": place.name,
        "seeds": list(range(size.seeds)),
        "arms": {arm: {"against": "fedavg"} for arm in ARMS},
        "runs": {arm: [f"{arm}/seed-{seed}" for seed in range(size.seeds)] for arm in ARMS},
    }
    (place / PLAN).write_text(tomli_w.dumps(plan))
    return place


def write_run(place: Path, arm: str, filter_name: str, seed: int, size: Size) -> Path:
    """Write a finished run; an arm with a filter reaches a higher accuracy."""
    place.mkdir(parents=True)
    table = {
        "name": arm,
        "seed": seed,
        "rounds": size.rounds,
        "data": {"clients": size.clients, "noisy": NOISY},
        "availability": {"name": "redraw", "n": size.available, "every": size.period},
        "filter": {"name": filter_name, "period": size.period},
        "selection": {"k": size.k},
    }
    config = Config.from_table(table)
    (place / CONFIG).write_text(tomli_w.dumps(config.table()))
    clients = ClientTable.of(_data(size.clients, seed), config)
    clients.write(place / CLIENTS)
    rng = np.random.default_rng([seed, *map(ord, arm)])
    records = _records(config, clients, rng, size)
    (place / RECORDS).write_text("".join(to_json(record) + "\n" for record in records))
    times = [{"round": t, "train": 0.5, "filter": 0.2, "evaluate": 0.1} for t in range(1, size.rounds + 1)]
    (place / TIMES).write_text("".join(to_json(line) + "\n" for line in times))
    write_summary(place, {"versions": {"filfl": "synthetic", "machine": "none"}}, {MODEL: "none"})
    return place


def _data(clients: int, seed: int) -> FederatedData:
    owners = np.repeat(np.arange(clients), 10)
    labels = np.arange(len(owners)) % 2
    return FederatedData.from_arrays(np.zeros((len(owners), 1)), labels, owners).with_wrong_labels(NOISY, seed)


def _records(config: Config, clients: ClientTable, rng: np.random.Generator, size: Size) -> list[dict[str, Any]]:
    filters = config.filter.name != "none"
    ceiling = (0.9 if filters else 0.8) + 0.01 * rng.standard_normal()
    kept: list[int] = []
    records = []
    for t in range(1, size.rounds + 1):
        S_t = config.availability(t, size.clients, config.seed)
        did_filter = filters and t % size.period == (0 if t > 1 else 1)
        considered = rng.permutation(S_t).tolist() if did_filter else []
        if did_filter:
            gains = 0.01 * rng.standard_normal(len(considered)) + np.where(clients.noisy[considered], -0.01, 0.004)
            trace = [
                {"client": k, "a": float(a), "b": float(-a / 7), "p": float(a > 0), "kept": bool(a > 0)}
                for k, a in zip(considered, gains, strict=True)
            ]
            kept = sorted(step["client"] for step in trace if step["kept"])
            values = [
                {"client": k, "value": a, "stderr": 0.008, "mean": a / 2, "mean_stderr": 0.004}
                for k, a in zip(considered, gains.tolist(), strict=True)
            ]
        here = [k for k in kept if k in set(S_t.tolist())] if filters else S_t.tolist()
        selected = sorted(rng.permutation(here)[: size.k].tolist())
        accuracy = ceiling * (1 - 0.9 * np.exp(-10 * t / size.rounds)) + 0.004 * rng.standard_normal()
        record = Record(
            round=t,
            did_filter=did_filter,
            available=S_t.tolist(),
            num_available=len(S_t),
            considered=considered,
            filtered=here if filters else None,
            num_filtered=len(here),
            selected=selected,
            refused={selected[0]: "its weights are not finite"} if t % 50 == 0 else {},
            notes=[],
            selected_train_loss=float(2.3 - 2 * accuracy),
            reward_all=7.5 if did_filter else None,
            reward_filtered=7.6 if did_filter else None,
            reward_selected=None,
            reward_optimum=None,
            surrogate_all=None,
            surrogate_filtered=None,
            surrogate_selected=None,
            evaluations=2 * len(considered),
            half_evaluations=0,
            uplink_bytes=200_000 * (len(considered) or size.k),
            downlink_bytes=0,
            trace=trace if did_filter else [],
            judges=[],
            values=values if did_filter else [],
            honest_gain=0.05 if did_filter else None,
            honest_gain_stderr=0.02 if did_filter else None,
            metrics={},
        )
        tested = {"test_accuracy": float(accuracy), "test_loss": float(2.4 - 2 * accuracy), "metrics": {}}
        records.append({**record.table(), **tested})
    return records
