"""What compressed logits cost: the quality of the sets that a filter finds with them.

python benchmarks/logit_forms.py

On FEMNIST with the network of poc-femnist, 50 writers train from the global models of a few rounds. A filter then runs
on each form of their logits. The true reward is that of the averaged weights on all of V. The table has the mean
difference to the sets that are found with full logits. The script prints a Markdown table.
"""

from collections import defaultdict
from functools import partial

import numpy as np
import torch
from torch import Tensor

from filfl.config.experiment import Experiment
from filfl.evaluation import Samples, cross_entropy, outputs
from filfl.filtering import FILTERS
from filfl.filtering.ensemble import EnsembleReward
from filfl.filtering.filtering_set import FilteringSet
from filfl.logits.encoding import Encoding
from filfl.report.formatting import markdown_rows
from filfl.rng import stream
from filfl.simulation.build import network
from filfl.simulation.executors.serial import LocalTraining, SerialClients, samples_on
from filfl.weights import FlatModel, Weights
from problems import found_sets, uploads

N, K, M = 50, 5, 500
STATES = (1, 8, 16)
SEEDS = (0, 1)
ENCODINGS: dict[str, tuple[Encoding, int | None]] = {
    "float32": (Encoding(), None),
    "float16": (Encoding("float16"), None),
    "int8": (Encoding("int8"), None),
    "int8, part = 250": (Encoding("int8"), 250),
    "int8, part = 100": (Encoding("int8"), 100),
    "int8, part = 50": (Encoding("int8"), 50),
    "int8, top = 10": (Encoding("int8", 10), None),
    "int8, top = 5": (Encoding("int8", 5), None),
    "int8, top = 2": (Encoding("int8", 2), None),
    "int8, top = 1": (Encoding("int8", 1), None),
}


def main() -> None:
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    all_clients = []
    for seed in SEEDS:
        config = Experiment.load("poc-femnist").config({"seed": seed})
        data = config.data.load(seed).with_filter_size(M, seed)
        build = partial(config.model.build, data.sample_shape, data.classes)
        net = network(build, seed, torch.device("cpu"))
        V = samples_on(net, data, data.filter_x, data.filter_y).aligned()
        training = LocalTraining(seed, config.algorithm, config.training)
        clients, w = SerialClients(data, net, cross_entropy, training), net.weights()
        for t in range(1, max(STATES) + 1):
            drawn = stream(seed, t, "benchmark").permutation(data.num_clients)
            ids = [int(k) for k in drawn[: N if t in STATES else K]]
            trained = {k: sent.vector for k, sent in uploads(clients.train(t, ids, w)).items()}
            if t in STATES:
                all_clients.append(judge(net, trained, w, V, seed, t, found))
            chosen = torch.stack([trained[k] for k in ids[:K]]).double().mean(dim=0).float()
            w = Weights(chosen, w.integers)
    rows = []
    for name, (encoding, part) in ENCODINGS.items():
        size = encoding.num_bytes((part or M, 62)) / 1e3
        apart = [np.subtract(found[how, name], found[how, "float32"]).mean() for how in ("dgf", "local-search")]
        rows.append([name, f"{size:.1f}", *(f"{value:+.4f}" for value in apart)])
    gains = {how: np.subtract(found[how, "float32"], all_clients).mean() for how in ("dgf", "local-search")}
    print("\n".join(markdown_rows(["encoding", "kB per client", "DGF", "local search"], rows)))
    print(f"\nfull logits, gain over keeping all: DGF {gains['dgf']:+.4f}, local search {gains['local-search']:+.4f}")


def judge(
    net: FlatModel,
    trained: dict[int, Tensor],
    w: Weights,
    V: Samples,
    seed: int,
    t: int,
    found: dict[tuple[str, str], list[float]],
) -> float:
    """Filter with every encoding, add the true rewards of the results to `found`, return that of all clients."""
    true = FilteringSet.of(net, V, cross_entropy).judgement(w).reward(trained, w)
    exact = {k: outputs(net, Weights(vector, w.integers), V) for k, vector in trained.items()}
    for name, (encoding, part) in ENCODINGS.items():
        rows = torch.from_numpy(np.sort(stream(seed, t, "part-of-V").permutation(M)[: part or M]))
        shape = (len(rows), 62)
        received = {k: encoding.decode(encoding.encode(z[rows]), shape, torch.device("cpu")) for k, z in exact.items()}
        R = EnsembleReward(received, V.y[rows], cross_entropy)
        for how in ("dgf", "local-search"):
            kept = found_sets(FILTERS[how]()(list(trained), R, stream(seed, t, "filter")))[0]
            found[how, name].append(true(kept))
    return true(frozenset(trained))


if __name__ == "__main__":
    main()
