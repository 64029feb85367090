"""The sections of a config with general options: their types, defaults and ranges."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from filfl.algorithms.optimizers import OPTIMIZERS, SGD, default_lr, make_optimizer, optimizer_problems, option_names
from filfl.config.plugins import NO_FILTER, imported_function, name_of
from filfl.config.schema import (
    NOT_AN_OPTION,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Range,
    Section,
    Whole,
    collecting,
    options_of,
)
from filfl.filtering import DGF, Filter
from filfl.filtering.exhaustive import too_many
from filfl.filtering.judges import JUDGES

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from filfl.config.config import Config
    from filfl.data import FederatedData
    from filfl.evaluation import Augment, Metric


@dataclass(frozen=True, kw_only=True)
class FilterOptions(Section):
    """The general options of client filtering. The options of the filter itself are in the same section."""

    method: Filter | None = field(default_factory=DGF, metadata=NOT_AN_OPTION)
    """The filter with its own options; None is federated learning without filtering."""
    reward: Literal["average", "ensemble"] | None = None
    """How a set of clients is evaluated. average: the loss of the model with their averaged weights, one inference over
    the filtering set for every set of clients. ensemble: the loss of their averaged outputs, a cheaper surrogate that
    needs one inference per client. Unset is that of the filter: ensemble for prune, average for all others."""
    verify: Whole = 0
    """With reward = "ensemble": how many of the best sets found are evaluated again by their averaged weights. S^f is
    the best of these and of keeping all clients. 0 trusts the ensemble."""
    transport: Literal["models", "logits"] = "models"
    """What clients send in a filter round. models: their trained weights. logits: only the outputs of their trained
    model on the filtering set, whose inputs become public; then the selected clients send their weights. See
    logits.md."""
    precision: Literal["float32", "float16", "int8"] = "float32"
    """With transport = "logits": the format of a number, of 4, 2 or 1 bytes (int8: and 4 bytes per sample)."""
    part: Count | None = None
    """With transport = "logits": how many samples of the filtering set are used in one filter round, drawn again every
    time. Unset is all of them."""
    top: Count | None = None
    """With transport = "logits": for how many of the most likely classes per sample logits are sent. Unset is all
    classes."""
    data: Literal["server", "file", "variable", "federated"] = "server"
    """The filtering set V. server: samples that the server holds. file: the samples of `path`. variable: the validation
    data of a random client, a different one in every filter round. federated: the training data of all available
    clients, weighted by size (Eq. (2)); every candidate model is sent to all of them."""
    path: str | None = None
    """With data = "file": an .npz file with arrays x and y like those of the clients. If their data is a table, also a
    .csv or .parquet file with its columns; if it is a folder of images, a folder class/file.png; if it is text, a text
    file."""
    size: Count | None = None
    """m, the number of samples of the server's filtering set that are used. Unset is all of them."""
    fixed: bool = False
    """Whether these m samples are the first ones, instead of being drawn with the seed. Where the server's samples do
    not depend on the seed either (a text or a file), V is then the same for every seed, as in the paper's Table 3."""
    classes: Count | None = None
    """Use only the samples of the first so many classes, to study a filtering set that lacks the others. Unset is all
    classes."""
    period: Count = 5
    """h: filter at least every h rounds. 1 is every round."""
    cap: Count | None = None
    """n, the largest number of available clients that a filter round considers, at least selection.k. All of them
    train. Unset means no limit."""
    least: Count | None = None
    """The smallest number of clients in S^f, for an aggregation that needs so many replies, such as Krum, Bulyan or
    differential privacy. If the filter kept fewer, S^f is extended by the client with which the reward is highest,
    again and again, up to this number or to all clients that trained. With reward = "average", every such step costs
    one inference per client that is not kept. Unset is selection.k with screen = true, so that a few clients that
    collude are not most of S^f, and no minimum otherwise: if the filter kept nobody, clients are selected from all that
    trained."""
    when: Literal["algorithm-1", "figure-2"] = "algorithm-1"
    """When to filter. algorithm-1: if t mod h = 0 or S_t differs from S_(t-1). figure-2: if a client is available that
    was not available at the last filtering, or if h rounds have passed since then."""
    empty: Literal["zero", "global"] = "global"
    """R of the empty set. global: the reward of the current global model, one more inference over the filtering set per
    filtering. zero: 0, as in the paper; then a greedy filter keeps the first client that it visits, whatever it sent,
    and perhaps no other client."""
    screen: bool | None = None
    """Whether clients that hurt by themselves are dropped: with one of them among K clients, and the global model in
    place of the others, the loss is significantly higher than with no update and than with the median client. true:
    before the filter looks for a combination, and in every round before the average, because a client can be honest
    only while it is filtered; it costs one more inference per client that is averaged and, with reward = "average", one
    per client that is filtered. Unset: only before the filter, and only where the clients' outputs on the filtering set
    are known (reward = "ensemble"), but for prune, which judges each client by itself."""
    values: Literal["one-of-k", "leave-one-out", "banzhaf", "shapley", "alone", "none"] | None = None
    """How clients are valued at every filtering (see values.md). Unset is one-of-k where the filter round has the
    clients' outputs on the filtering set (reward = "ensemble"), and none elsewhere: with reward = "average", it costs
    one more inference per client."""
    honest_gain: bool = True
    """Whether the gain of S^f over all clients is also measured on samples that were not used to choose S^f: the filter
    runs once more on each half of the filtering set."""
    optimum: bool = False
    """Whether every filter round also evaluates all subsets of at most 20 clients and records the reward of the best
    one (`reward_optimum`). This changes nothing else, and is not counted in `evaluations`."""

    def knowing(self, faulty: frozenset[int]) -> "FilterOptions":
        """These options, in a simulation in which these clients are faulty."""
        return replace(self, method=self.method.knowing(faulty)) if self.method else self

    @property
    def surrogate(self) -> bool:
        """Whether the filter maximises the ensemble reward."""
        return (self.reward or (self.method.reward if self.method else "average")) == "ensemble"

    @property
    def valued_by(self) -> str | None:
        """The method of `filfl.values` by which clients are valued; None is none."""
        chosen = self.values or ("one-of-k" if self.surrogate else "none")
        return None if chosen == "none" else chosen

    @property
    def screens(self) -> bool:
        """Whether clients that hurt by themselves are dropped before the filter is run."""
        if self.screen is None:
            return self.surrogate and self.method is not None and self.method.screened
        return self.screen

    @property
    def judged_by_clients(self) -> bool:
        """Whether the filtering set is on clients."""
        return self.data in JUDGES

    @property
    def name(self) -> str:
        """The name of the filter in a config."""
        return NO_FILTER if self.method is None else name_of("filter", self.method)

    def problems(self, config: "Config") -> list[str]:
        problems = self.method.problems(config) if self.method else []
        if self.method and (clash := options_of(type(self)).keys() & options_of(type(self.method)).keys()):
            problems.append(
                f'filter.name = "{self.name}" has the option {min(clash)}, which every filter has; rename it'
            )
        k = config.selection.k
        if self.method and self.cap is not None and k > self.cap:
            problems.append(f"selection.k must be between 1 and filter.cap = {self.cap} (got {k})")
        if self.method and self.cap is not None and self.least is not None and self.least > self.cap:
            problems.append(f"filter.least must be between 1 and filter.cap = {self.cap} (got {self.least})")
        if (self.data == "file") != (self.path is not None):
            problems.append('filter.path and filter.data = "file" belong together; set both or neither')
        if self.reward == "ensemble" and self.judged_by_clients:
            problems.append(
                'filter.reward = "ensemble" needs a filtering set on the server, but that of filter.data = '
                f'"{self.data}" is on clients; set filter.data to "server" or "file"'
            )
        if self.valued_by and self.judged_by_clients and not self.surrogate:
            problems.append(
                f'filter.values = "{self.values}" needs a filtering set on the server, but that of filter.data = '
                f'"{self.data}" is on clients; set filter.data to "server" or "file"'
            )
        if self.screen and self.judged_by_clients:
            problems.append(
                f'filter.screen needs a filtering set on the server, but that of filter.data = "{self.data}" is on '
                'clients; set filter.data to "server" or "file", or filter.screen to false'
            )
        if self.optimum and self.judged_by_clients:
            problems.append(
                f'filter.optimum with filter.data = "{self.data}" would send every subset to clients; set filter.data '
                'to "server" or "file", or remove filter.optimum'
            )
        if not self.surrogate and self.verify:
            problems.append(
                f'filter.verify = {self.verify} has no effect with filter.reward = "average", the true reward; set '
                'filter.verify to 0, or filter.reward to "ensemble"'
            )
        return problems + self._problems_of_transport()

    def _problems_of_transport(self) -> list[str]:
        if self.transport == "models":
            given = {"precision": self.precision != "float32", "part": self.part, "top": self.top}
            return [
                f'filter.{option} applies to logits only; set filter.transport to "logits", or remove it'
                for option, there in given.items()
                if there
            ]
        logits, problems = 'filter.transport = "logits"', []
        if not self.surrogate:
            problems.append(f'{logits} needs filter.reward = "ensemble" (got "average")')
        if self.verify:
            problems.append(
                f"filter.verify = {self.verify} needs the weights of all clients, but with {logits} the server does "
                'not have them; set filter.verify to 0, or filter.transport to "models"'
            )
        if self.optimum:
            problems.append(
                f"filter.optimum needs the weights of all clients, but with {logits} the server does not have them; "
                'remove filter.optimum, or set filter.transport to "models"'
            )
        if self.part and self.size and self.part > self.size:
            problems.append(f"filter.part must be between 1 and filter.size = {self.size} (got {self.part})")
        return problems

    def problems_with(self, config: "Config", data: "FederatedData") -> list[str]:
        problems = self.method.problems_with(config, data) if self.method else []
        if not self.judged_by_clients and (self.method or config.aggregation.uses_V):
            problems += self._problems_with_filtering_set(config, data)
        if self.method and self.optimum:
            problems += too_many("filter.optimum = true", config, data)
        return problems

    def _problems_with_filtering_set(self, config: "Config", data: "FederatedData") -> list[str]:
        kept = data.with_filter_size(None, 0, self.classes) if data.classes else data
        m, problems = len(kept.filter_y), []
        if m == 0:
            without = ["filter.name to none"] if self.method else []
            without += ["aggregation.name to mean"] if config.aggregation.uses_V else []
            problems.append(
                "the server's filtering set is empty; raise data.filtering (in Python: the argument `filtering` of "
                f"FederatedData.from_arrays), or set {' and '.join(without)}"
            )
        for option, value in {"size": self.size, "part": self.part}.items():
            if value is not None and value > m > 0:
                problems.append(
                    f"filter.{option} must be between 1 and the {m} samples of the server's filtering set (got {value})"
                )
        if self.classes is not None and not 0 < self.classes <= data.classes:
            problems.append(f"filter.classes must be between 1 and the {data.classes} classes (got {self.classes})")
        if self.top is not None and not data.classes:
            problems.append("filter.top needs class labels, but this dataset has numeric targets; remove it")
        elif self.top is not None and self.top >= data.classes:
            problems.append(f"filter.top must be below the {data.classes} classes of the data (got {self.top})")
        return problems


NEEDED = {"step": ("factor", "every"), "milestones": ("factor", "milestones"), "inverse": ("beta",)}
"""The options that a schedule of the step size needs."""


@dataclass(frozen=True, kw_only=True)
class Training(Section):
    """Local training of a client in one round."""

    epochs: Count | None = None
    """E, the number of passes over the client's data. 1 if neither epochs nor steps is set. Set only one of the two."""
    steps: Count | None = None
    """The number of batches, instead of epochs."""
    batch: Count = 16
    """The number of samples in a batch. The last batch of an epoch may be smaller."""
    optimizer: str = SGD
    """A class of torch.optim, such as SGD, Adam, AdamW or RMSprop. Every client has a new one in every round. Only SGD
    can be vectorized."""
    options: Mapping[str, Any] | None = None
    """Options of the optimizer, as torch.optim names them, such as options = {betas = [0.9, 0.99]}. Unset are torch's
    defaults."""
    clip: Positive | None = None
    """The largest norm of a gradient: a larger one is scaled down to it. Unset is no limit."""
    augment: str | None = None
    """The import path of a function (x, rng) -> x that changes every batch of training inputs. See extending.md."""
    lr: Positive | None = None
    """The step size. Unset is 0.1 for SGD, and torch's default for the other optimizers, such as 0.001 for Adam."""
    schedule: Literal["constant", "step", "milestones", "inverse"] = "constant"
    """The step size of round t = 1, 2, ... constant: lr. step: lr * factor^floor(t / every). milestones: lr *
    factor^(the number of milestones up to t). inverse: beta / t."""
    factor: Positive | None = None
    """With schedule = "step" or "milestones": the step size is multiplied by this number every `every` rounds, or in
    the rounds `milestones`. 1 keeps it constant."""
    every: Count | None = None
    """With schedule = "step": the number of rounds between two changes of the step size."""
    milestones: tuple[Count, ...] = ()
    """With schedule = "milestones": the rounds from which on the step size is multiplied by `factor` once more."""
    beta: Positive | None = None
    """With schedule = "inverse": the step size of the first round; that of round t is beta / t."""
    momentum: Fraction = 0.0
    """The momentum of SGD, as in torch.optim.SGD. It starts at zero in every round. 0 is none; at 1 gradients
    accumulate without decay. With another optimizer, 0 is torch's default."""
    weight_decay: NonNegative = 0.0
    """The factor of an L2 penalty, weight_decay / 2 ||w||^2, as in torch.optim.SGD. 0 is none. With another optimizer,
    0 is torch's default, such as 0.01 for AdamW; set options = {weight_decay = 0} for none."""

    def lr_at(self, t: int) -> float:
        """eta_t, the step size of round t."""
        lr = default_lr(self.optimizer) if self.lr is None else self.lr
        if self.schedule == "inverse":
            return (self.beta or 1.0) / t
        changes = {"step": t // (self.every or 1), "milestones": sum(t >= each for each in self.milestones)}
        try:
            return lr * float((self.factor or 1.0) ** changes.get(self.schedule, 0))
        except OverflowError:
            return math.inf

    @property
    def is_sgd(self) -> bool:
        """Whether the steps are those of SGD without further options, which can be vectorized."""
        return self.optimizer == SGD and not self.options

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """The options of the optimizer, apart from the step size."""
        common = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {**{key: value for key, value in common.items() if value}, **(self.options or {})}

    def augmentation(self) -> "Augment | None":
        """The function at the import path `augment`."""
        return None if self.augment is None else imported_function("training.augment", self.augment)

    def new_optimizer(self, parameters: Sequence["Tensor"], t: int = 1) -> "Optimizer":
        """The optimizer of a client in round t."""
        return make_optimizer(self.optimizer, parameters, self.lr_at(t), self.optimizer_options)

    def problems(self, config: "Config") -> list[str]:
        problems = []
        if self.epochs is not None and self.steps is not None:
            problems.append(
                f"training.epochs = {self.epochs} and training.steps = {self.steps} exclude each other; set only one"
            )
        for schedule, needed in NEEDED.items():
            missing = [f"training.{option}" for option in needed if getattr(self, option) in (None, ())]
            if self.schedule == schedule and missing:
                problems.append(f'training.schedule = "{schedule}" needs {" and ".join(missing)}')
        if self.optimizer in OPTIMIZERS and not math.isfinite(self.lr_at(config.rounds)):
            problems.append(
                f"training.factor = {self.factor} makes the step size too large for a number within {config.rounds} "
                "rounds; choose a smaller factor or a larger training.every"
            )
        with collecting(problems):
            self.augmentation()
        return problems + self._problems_of_optimizer(config)

    def _problems_of_optimizer(self, config: "Config") -> list[str]:
        if self.is_sgd:
            return []
        problems = []
        for key in ("momentum", "weight_decay") if self.optimizer in OPTIMIZERS else ():
            if getattr(self, key) and key in (self.options or {}):
                problems.append(f"training.{key} and training.options.{key} are the same option; set only one")
            elif getattr(self, key) and key not in option_names(self.optimizer):
                problems.append(f"training.{key} is not an option of {self.optimizer}; remove it")
        problems = problems or optimizer_problems(self.optimizer, self.optimizer_options)
        if config.execution.mode == "vectorized" and not self.is_sgd:
            with_options = " with training.options" if self.optimizer == SGD else ""
            problems.append(
                f'execution.mode = "vectorized" is for SGD only (got training.optimizer = "{self.optimizer}"'
                f'{with_options}); set execution.mode to "auto"'
            )
        return problems


@dataclass(frozen=True, kw_only=True)
class Evaluate(Section):
    """When and by what the global model is tested."""

    every: Count = 1
    """The number of rounds between two tests. 1 is every round. The last round is always tested."""
    metrics: tuple[str, ...] = ()
    """Your own metrics in addition to the accuracy: import paths of functions (outputs, targets) -> number, such as
    ["mypackage.metrics:f1"]. Each has the name of its function."""
    primary: str | None = None
    """The metric by which runs are compared, and which targets are about: accuracy, loss, or the name of a metric of
    your own. Unset is the accuracy, or the loss if the targets are numbers."""
    better: Literal["higher", "lower"] | None = None
    """Which values of the primary metric are better. Unset is lower for the loss, and higher for all others."""
    train_samples: Whole = 0
    """The number of training samples, drawn once from those of all clients, on which every test also measures F(w_t),
    the loss of the global model (`metrics.global_train_loss` in the records). 0 measures nothing; more than there are
    takes all. In a simulation only."""

    def functions(self) -> dict[str, "Metric"]:
        """The functions at the import paths, by the name of the metric."""
        return {path.rpartition(":")[2]: imported_function("evaluate.metrics", path) for path in self.metrics}

    def problems(self, config: "Config") -> list[str]:
        problems: list[str] = []
        with collecting(problems):
            if len(self.functions()) < len(self.metrics):
                problems.append("evaluate.metrics: two functions have the same name; rename one of them")
        if self.better is not None and self.primary is None:
            problems.append("evaluate.better is about the primary metric; set evaluate.primary")
        return problems


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    """When the state of a run is saved, so that it can be resumed."""

    every: Count = 1
    """The number of rounds between two checkpoints. 1 is every round. The last round always has one."""
    keep: Annotated[int, Range(at_least=2)] = 2
    """How many of the latest checkpoints are kept. Two, so that a damaged one does not end the run. `filfl verify`
    recomputes rounds from them."""


@dataclass(frozen=True, kw_only=True)
class Execution(Section):
    """Where and how clients are simulated."""

    mode: Literal["auto", "serial", "vectorized", "processes"] = "auto"
    """serial: one client after another. vectorized: many clients in one batched computation. processes: in parallel
    worker processes. auto chooses by the model, never by the load of the machine. serial and processes agree bit for
    bit; vectorized agrees up to rounding."""
    workers: Count | None = None
    """How many clients train, and how many sets of clients are evaluated, at the same time. Unset is one per core. The
    result does not depend on it."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ... auto is CUDA if there is a GPU."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """How dgf and rgf evaluate the averages of clients. bfloat16: in half precision, and in float32 only what half
    precision cannot decide, so that S^f is that of float32. auto: bfloat16 for networks that are large enough, where
    the hardware multiplies it. The gains in a trace are those that decided; all rewards in a record are of float32."""
    deterministic: bool = True
    """Whether cuDNN uses only deterministic algorithms. false lets it measure several of them and take the fastest,
    which may give other bits in another run. No effect on the CPU. See cuda.md."""
    tf32: bool = False
    """Whether CUDA may compute products of float32 numbers in TF32, with 10 bits of precision instead of 23: faster
    and less accurate. No effect on the CPU. See cuda.md."""
    memory: Annotated[float, Range(above=0, at_most=1e9)] | None = None
    """How many GB the trained weights of one round may take in memory; the rest is kept in a temporary file (in
    TMPDIR). Unset means no limit. On the CPU only."""
