"""Golden hashes: small runs whose records and final weights must not change while the code is reorganised.

    python tests/golden/hashes.py write    # on the tree to compare with
    python tests/golden/hashes.py check    # on the changed tree, same machine

Rounding differs between CPUs, so this is not part of the test suite: write and check on the same machine. Notes and the
reasons of refusals are not part of the hash, so that their wording may change.
"""

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STORED = HERE / "hashes.json"

SMALL: dict[str, Any] = {
    "rounds": 4,
    "data.clients": 12,
    "availability.name": "redraw",
    "availability.n": 8,
    "availability.every": 2,
    "filter.size": 40,
    "filter.period": 2,
    "selection.k": 3,
    "model.hidden": [8],
}
ENSEMBLE = {"filter.reward": "ensemble"}
LOGITS = {**ENSEMBLE, "filter.transport": "logits"}
CONFIGS: dict[str, dict[str, Any]] = {
    "dgf": {},
    "rgf": {"filter.name": "rgf"},
    "opt": {"filter.name": "opt"},
    "keep-all": {"filter.name": "keep-all"},
    "none": {"filter.name": "none"},
    "local-search": {"filter.name": "local-search", **ENSEMBLE},
    "local-search-average": {"filter.name": "local-search"},
    "serial": {"execution.mode": "serial"},
    "processes": {"execution.mode": "processes"},
    "spill": {"execution.mode": "serial", "execution.memory": 1e-5},
    "optimum": {"filter.optimum": True},
    "ensemble-verify": {**ENSEMBLE, "filter.name": "local-search", "filter.verify": 3},
    "ensemble-global": {**ENSEMBLE, "filter.empty": "global"},
    "global": {"filter.empty": "global"},
    "figure-2": {"filter.when": "figure-2", "filter.cap": 6, "filter.period": 3},
    "variable": {"filter.data": "variable", "filter.size": "unset"},
    "federated": {"filter.data": "federated", "filter.size": "unset", "rounds": 2},
    "power-of-choice": {"selection.name": "power-of-choice", "selection.d": 5},
    "divfl": {"selection.name": "divfl"},
    "divfl-updates": {"selection.name": "divfl", "selection.of": "updates"},
    "replacement": {"selection.name": "random-with-replacement"},
    "diurnal": {"availability.name": "diurnal"},
    "lognormal": {"availability.name": "lognormal"},
    "fedprox": {"algorithm.name": "fedprox", "algorithm.mu": 0.5, "training.momentum": 0.5},
    "by-examples": {"aggregation.name": "by-examples", "training.steps": 3, "training.weight_decay": 0.01},
    "noisy-sign-flip": {"data.noisy": 0.3, "attack.name": "sign-flip", "attack.share": 0.25},
    "scaled": {"attack.name": "scaled", "attack.share": 0.3, "attack.factor": 1000.0},
    "logits": LOGITS,
    "logits-serial": {**LOGITS, "execution.mode": "serial", "filter.name": "local-search"},
    "logits-int8-top": {**LOGITS, "filter.precision": "int8", "filter.top": 4, "filter.part": 20},
    "logits-float16-global": {**LOGITS, "filter.precision": "float16", "filter.empty": "global"},
    "logits-divfl": {**LOGITS, "selection.name": "divfl", "selection.of": "predictions"},
    "logits-divfl-updates": {**LOGITS, "selection.name": "divfl", "selection.of": "updates"},
    "logits-replacement": {**LOGITS, "selection.name": "random-with-replacement"},
    "logits-poc": {**LOGITS, "selection.name": "power-of-choice"},
    "schedule": {"training.schedule": "step", "training.factor": 0.5, "training.every": 2, "training.epochs": 2},
    "ridge": {
        "data.name": "ridge",
        "model.name": "linear",
        "data.clients": 8,
        "filter.size": 20,
        "availability.name": "always",
    },
}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "demo": {"rounds": 6},
    "convergence": {"rounds": 6},
    "noisy-clients": {"rounds": 3},
    "poc-femnist": {"rounds": 2},
    "poc-shakespeare": {"rounds": 2},
    "poc-cifar10": {"rounds": 1},
    "logit-filtering": {"rounds": 3},
}


def digest(directory: Path) -> str:
    """The hash of a run directory: records without their wording, clients, final weights."""
    found = hashlib.sha256()
    for line in (directory / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        record["notes"], record["refused"] = len(record["notes"]), sorted(record["refused"])
        if record["test_loss"] is not None:  # Flower sums the clients' metrics in an order that differs between runs
            record["test_loss"] = float(f"{record['test_loss']:.9g}")
            record["metrics"] = {name: float(f"{value:.9g}") for name, value in record["metrics"].items()}
        found.update(json.dumps(record, sort_keys=True).encode())
    if (directory / "clients.csv").exists():
        found.update((directory / "clients.csv").read_bytes())
    found.update((directory / "model.safetensors").read_bytes())
    return found.hexdigest()


def simulated() -> dict[str, str]:
    import filfl

    hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in CONFIGS.items():
            small = {k: v for k, v in {**SMALL, **changes}.items() if v != "unset"}
            if small["availability.name"] != "redraw":
                small = {k: v for k, v in small.items() if k not in ("availability.n", "availability.every")}
            if small.get("model.name") == "linear":
                del small["model.hidden"]
            filfl.simulate(small, out=Path(folder) / name)
            hashes[name] = digest(Path(folder) / name)
            print(name, hashes[name][:12], flush=True)
    return hashes


def experiments() -> dict[str, str]:
    """The first rounds of the built-in experiments, run from the command line."""
    import subprocess

    hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, changes in EXPERIMENTS.items():
            settings = [part for k, v in changes.items() for part in ("--set", f"{k}={v}")]
            out = Path(folder) / name
            command = [sys.executable, "-m", "filfl.cli", "run", name, "--out", str(out), *settings]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
            hashes[f"run {name}"] = digest(out)
            print(f"run {name}", hashes[f"run {name}"][:12], flush=True)
    return hashes


def federated() -> dict[str, str]:
    """Runs on Flower with in-memory nodes."""
    sys.path.insert(0, str(HERE.parent / "flower"))
    import sites
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAdam, FedAvg

    from filfl.flower import FilFL, FilteringSet, add_queries, keep_weights

    x, y = sites.blobs(0)
    v = FilteringSet(sites.new_net, x, y)

    def load(context: Any) -> Any:
        return sites.new_net(), sites.batches(context)

    def app() -> Any:
        made = sites.plain_app(app=ClientApp(mods=[keep_weights(lambda context: sites.new_net())]))
        add_queries(made, load)
        return made

    logits = {"filter.reward": "ensemble", "filter.transport": "logits"}
    cases: dict[str, Any] = {
        "plain": (FedAvg(), {"evaluate": sites.loss_on_v}),
        "adam": (FedAdam(), {"evaluate": v, "filter": "rgf"}),
        "poc": (FedAvg(), {"evaluate": v, "selection": "power-of-choice"}),
        "divfl": (FedAvg(), {"evaluate": v, "selection": "divfl"}),
        "logits": (FedAvg(), {"evaluate": v, "options": logits}),
        "federated": (FedAvg(), {"options": {"filter.data": "federated"}}),
        "none": (FedAvg(fraction_evaluate=0.5), {"filter": "none"}),
    }
    hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (strategy, options) in cases.items():
            out = Path(folder) / name
            FilFL(strategy, k=2, h=2, out=out, min_nodes=6, wait=5, **options).start(
                grid=sites.federation(app()), initial_arrays=sites.initial(), num_rounds=5, timeout=30
            )
            hashes[f"flower {name}"] = digest(out)
            print(f"flower {name}", hashes[f"flower {name}"][:12], flush=True)
    return hashes


def main() -> None:
    warnings.simplefilter("ignore")
    hashes = {**simulated(), **federated(), **experiments()}
    if sys.argv[1:] == ["write"]:
        STORED.write_text(json.dumps(hashes, indent=1) + "\n")
        return
    stored = json.loads(STORED.read_text())
    wrong = [name for name in stored if hashes.get(name) != stored[name]]
    print("all equal" if not wrong else f"DIFFERENT: {', '.join(wrong)}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
