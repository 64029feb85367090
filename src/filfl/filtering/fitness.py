"""Whether the filtering set V is fit for its purpose: warnings in plain words, each given once in a run."""

import math
from dataclasses import dataclass, replace

import numpy as np

from filfl.core.evidence import PREFIX, Evidence
from filfl.filtering.filtering_set import FilteringSet

FILTERINGS = 5
"""A warning during the run needs at least this many filterings."""
FEW, ENOUGH = 10, 50
"""Below the first number of samples, filfl advises to use the second: with V of 20 samples, pruning loses more than a
point of accuracy (docs/values.md), with 100 nothing that can be measured."""
Z = 1.96
MOST_LISTED = 10


@dataclass(frozen=True)
class Fitness:
    """Looks for what is wrong with V: before the first round, and after every filtering."""

    m: int
    at_start: tuple[str, ...] = ()

    @classmethod
    def of(cls, V: FilteringSet | None, from_clients: bool) -> "Fitness":
        """`from_clients`: whether V has samples of clients that are not known to be trusted. V is None where it is on
        the clients."""
        found = [*(missing_classes(V) if V else []), *(few_samples(V) if V else [])]
        found += [FROM_CLIENTS] if from_clients else []
        return cls(len(V) if V else 0, tuple(PREFIX + text for text in found))

    def __call__(self, evidence: Evidence) -> tuple[Evidence, list[str]]:
        """The warnings after a filtering that this run was not given before."""
        found = {"gain": gain_is_noise(evidence), "size": too_small(evidence, self.m)}
        new = {key: PREFIX + text for key, text in found.items() if text and key not in evidence.warned}
        at_start = [] if "start" in evidence.warned else self.at_start
        return replace(evidence, warned=evidence.warned | {"start", *new}), [*at_start, *new.values()]


FROM_CLIENTS = (
    "it has samples of all clients, so those of bad clients are among them, and the judgement can be wrong; name "
    "clients that you trust (data.trusted, in Python trusted=[...]), or give samples that you trust (filter.data = "
    '"file", in Python filtering=(x, y))'
)


def few_samples(V: FilteringSet) -> list[str]:
    return [f"it has only {len(V)} samples, too few to judge clients; use at least {ENOUGH}"] if len(V) < FEW else []


def missing_classes(V: FilteringSet) -> list[str]:
    """Classes of the model that have no sample in V."""
    y, shape = V.targets(), V.output_shape()
    if y.is_floating_point() or y.ndim != 1 or len(shape) != 1:
        return []
    missing = np.setdiff1d(np.arange(shape[0]), y.cpu().numpy()).tolist()
    if not missing:
        return []
    names = V.class_names if len(V.class_names) == shape[0] else range(shape[0])
    listed = ", ".join(str(names[k]) for k in missing[:MOST_LISTED]) + (", ..." if len(missing) > MOST_LISTED else "")
    return [
        f"{len(missing)} of {shape[0]} classes have no sample in it ({listed}); what clients know about these classes "
        "is not seen"
    ]


def gain_is_noise(evidence: Evidence) -> str | None:
    """Whether the filter gains only on the samples that it chose on."""
    if len(evidence.gains) < FILTERINGS:
        return None
    in_sample, honest = np.mean(evidence.gains, axis=0)
    if in_sample <= 0 or honest > 0:
        return None
    return (
        f"over the last {len(evidence.gains)} filterings, the filtered clients were better than all clients by "
        f"{in_sample:.4f} in loss on the samples that they were chosen on, but not on others ({honest:+.4f}); the "
        "filter drops clients for noise; use more samples"
    )


def too_small(evidence: Evidence, m: int) -> str | None:
    """Whether no single client can be told from noise, and how many samples would do."""
    if evidence.filterings < FILTERINGS:
        return None
    known = [(each.value, each.stderr) for each in evidence.clients.values()]
    z = [abs(value) / stderr for value, stderr in known if value is not None and stderr]
    if not z or max(z) > Z:
        return None
    needed = math.ceil(m * (Z / max(max(z), 1e-3)) ** 2)
    return (
        f"with its {m} samples no single client can be told from noise; about {needed} samples would do for the "
        "clearest one"
    )
