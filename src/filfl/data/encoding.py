"""How the columns of a table become the inputs and targets of a network, so that new rows can be encoded alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from filfl.data.frames import Columns, read_columns, whole_numbers
from filfl.data.labels import is_missing, number_labels, plain, several
from filfl.data.sources import log, warn_count
from filfl.display import some
from filfl.errors import DataError

Array = NDArray[Any]
Task = Literal["classification", "regression"]
Missing = Literal["error", "drop", "fill"]
MOST_CATEGORIES = 100
"""A text column with more different texts is refused: it is more likely a text or an id than a category."""
MOST_CLASSES = 50
"""A target of whole numbers with more classes may be meant as a number."""


@dataclass(frozen=True)
class Column:
    """How a column becomes inputs: (value - mean) / std, or for texts one input per category, which is 0 or 1."""

    name: str
    categories: tuple[str, ...] = ()
    """The categories in the order of their inputs; empty for a column of numbers."""
    mean: float = 0.0
    std: float = 1.0
    fill: float = 0.0
    """With missing = "fill": the number that replaces a missing one. A missing category is 0 in all of its inputs."""

    @classmethod
    def of(cls, name: str, values: Array) -> "Column":
        """The encoding of a column, before it is standardised."""
        present = _plain(name, values[~is_missing(values)])
        if present.dtype.kind not in "Ub":
            return cls(name, fill=float(np.median(present)) if len(present) else 0.0)
        texts = _texts(present)
        words = [text for text in texts if not _is_number(text)]
        if present.dtype.kind == "U" and 0 < len(words) < len(texts) / 2:
            raise DataError(
                f"column {name} has numbers and {len(words)} texts, such as {words[0]!r}; make them numbers or missing "
                "values"
            )
        categories = sorted(set(texts))
        if len(categories) > MOST_CATEGORIES:
            raise DataError(
                f"column {name} has {len(categories):,} different texts, at most {MOST_CATEGORIES} can be categories; "
                "leave it out (features lists the columns to use), group its texts, or see FederatedData.from_texts"
            )
        return cls(name, tuple(categories))

    @property
    def inputs(self) -> list[str]:
        """The names of its inputs: age, or sex=f and sex=m."""
        return [f"{self.name}={category}" for category in self.categories] or [self.name]

    def encode(self, values: Array) -> NDArray[np.float32]:
        """The inputs of these values, not standardised: [n, inputs]. Missing values are filled."""
        missing = is_missing(values)
        present = _plain(self.name, values[~missing])
        if not self.categories:
            if present.dtype.kind in "Ub":
                raise DataError(f"column {self.name} must be numbers (got {present[0]!r})")
            numbers = np.full(len(values), self.fill)
            numbers[~missing] = present
            with np.errstate(over="ignore"):
                single = numbers.astype(np.float32)
            if count := int((~np.isfinite(single)).sum()):
                raise DataError(f"column {self.name} has {_values(count)} that are infinite or too large")
            return single[:, None]
        made = np.zeros((len(values), len(self.categories)), dtype=np.float32)
        codes = number_labels(f"column {self.name}", _texts(present), self.categories)
        made[np.flatnonzero(~missing), codes] = 1
        return made


@dataclass(frozen=True)
class Encoding:
    """How the rows of a table become samples. `data.encoding.inputs(frame)` encodes new rows."""

    client: str
    """The column with the client."""
    target: str
    """The column with the target."""
    columns: tuple[Column, ...]
    """The columns that become inputs, in the order of the inputs."""
    classes: tuple[str, ...] = ()
    """The names of the classes 0, 1, ...; empty if the target is a number."""
    target_mean: float = 0.0
    target_std: float = 1.0
    """A numeric target is (value - target_mean) / target_std."""
    missing: Missing = "error"

    @classmethod
    def of(
        cls,
        table: Columns,
        client: str,
        target: str,
        features: Sequence[str] | None,
        task: Task | None,
        missing: Missing,
    ) -> "Encoding":
        """The encoding of a table without missing values that `missing` does not allow, before it is standardised."""
        others = [name for name in table if name not in (client, target)]
        columns = tuple(Column.of(name, table[name]) for name in (others if features is None else features))
        y = _plain(target, table[target])
        classes = () if _task(target, y, task) == "regression" else tuple(_texts(np.unique(y)))
        if len(classes) == 1:
            raise DataError(f"column {target} has a single class ({classes[0]}); there is nothing to learn")
        return cls(client, target, columns, classes, missing=missing)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Encoding":
        """The encoding of which `asdict` gave these values, as they are in a JSON file."""
        columns = tuple(Column(**{**each, "categories": tuple(each["categories"])}) for each in values["columns"])
        return cls(**{**values, "columns": columns, "classes": tuple(values["classes"])})

    @property
    def feature_names(self) -> list[str]:
        """The name of every input of the network."""
        return [name for column in self.columns for name in column.inputs]

    def inputs(self, table: Any) -> NDArray[np.float32]:
        """The inputs for the rows of a frame or file, which needs neither a target nor a client."""
        rows = read_columns(table)
        require(rows, [column.name for column in self.columns])
        refuse_missing(
            rows, [column.name for column in self.columns], "error" if self.missing == "drop" else self.missing
        )
        return self.encoded(rows)

    def samples(self, table: Any, with_client: bool = False) -> tuple[Array, ...]:
        """The inputs and targets for the rows of a frame or file; and their clients, if wanted and known."""
        rows = read_columns(table, [self.client])
        client = self.client if with_client and self.client in rows else None
        rows = complete(rows, client, self.target, [column.name for column in self.columns], self.missing)
        samples = self.encoded(rows), self.targets(rows)
        return (*samples, whole_numbers(rows[client])) if client else samples

    def encoded(self, rows: Columns) -> NDArray[np.float32]:
        raw = np.concatenate([column.encode(rows[column.name]) for column in self.columns], axis=1)
        return self._scaled(raw)

    def targets(self, rows: Columns) -> Array:
        values = _plain(self.target, rows[self.target])
        if self.classes:
            return number_labels(f"column {self.target}", _texts(values), self.classes)
        if values.dtype.kind not in "iuf":
            raise DataError(f"column {self.target} must be numbers (got {values[0]!r})")
        return _standardised(values.astype(np.float32), self.target_mean, self.target_std)

    def standardised(self, x: Array, y: Array) -> "Encoding":
        """This encoding with the means and standard deviations of samples that it encoded."""
        scaled, start = [], 0
        for column in self.columns:
            inputs = x[:, start].astype(np.float64)
            start += len(column.inputs)
            numbers = replace(column, mean=float(inputs.mean()), std=float(inputs.std()) or 1.0)
            scaled.append(column if column.categories else numbers)
        fitted = replace(self, columns=tuple(scaled))
        return (
            fitted if self.classes else replace(fitted, target_mean=float(y.mean()), target_std=float(y.std()) or 1.0)
        )

    def rescale(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Samples that the encoding before `standardised` encoded, by this one."""
        return self._scaled(x), y if self.classes else _standardised(y, self.target_mean, self.target_std)

    def _scaled(self, raw: Array) -> NDArray[np.float32]:
        means = [column.mean for column in self.columns for _ in column.inputs]
        stds = [column.std for column in self.columns for _ in column.inputs]
        return _standardised(raw, np.array(means), np.array(stds))


def encode(
    table: Any, client: str, target: str, features: Sequence[str] | None, task: Task | None, missing: Missing
) -> tuple[Encoding, Array, Array, Array]:
    """The encoding of a table, which is not standardised, and the inputs, targets and clients of its rows."""
    rows = complete(read_columns(table, [client]), client, target, features, missing)
    encoding = Encoding.of(rows, client, target, features, task, missing)
    owners = several(f"column {client}", whole_numbers(rows[client]))
    return encoding, encoding.encoded(rows), encoding.targets(rows), owners


def complete(
    rows: Columns, client: str | None, target: str, features: Sequence[str] | None, missing: Missing
) -> Columns:
    """The rows of a table, after a check that the columns exist and that no values are missing.

    client: None if the column of the clients is not needed.
    features: None for all columns but those of the client and the target.
    """
    if missing not in ("error", "drop", "fill"):
        raise DataError(f'missing must be "error", "drop" or "fill" (got {missing!r})')
    needed = [name for name in (client, target) if name is not None]
    if features is None:
        features = [name for name in rows if name not in needed]
    require(rows, [*needed, *features])
    if client == target:
        raise DataError(f"client and target are the same column, {target}")
    if both := [name for name in features if name in needed]:
        raise DataError(f"column {both[0]} cannot be a feature; it is the client or the target")
    if not features:
        raise DataError(f"the table has no columns besides {' and '.join(needed)}; it needs at least one feature")
    used = [*needed, *features]
    if missing == "drop":
        whole = ~np.any([is_missing(rows[name]) for name in used], axis=0)
        if not whole.any():
            raise DataError('no row of the table is without missing values; use missing = "fill", or other features')
        warn_count("table", "rows with missing values, dropped", int((~whole).sum()))
        return {name: values[whole] for name, values in rows.items()}
    refuse_missing(rows, used if missing == "error" else needed, missing)
    return rows


def require(rows: Columns, names: Sequence[str]) -> None:
    """Refuse a table without one of these columns."""
    if absent := [name for name in names if name not in rows]:
        raise DataError(f"the table has no column {absent[0]}; it has {', '.join(rows)}")


def refuse_missing(rows: Columns, names: Sequence[str], missing: Missing) -> None:
    counts = {name: int(is_missing(rows[name]).sum()) for name in names}
    if lacking := [f"{name} has {count}" for name, count in counts.items() if count]:
        others = "" if missing == "fill" else ', missing = "fill" to replace them by the median of the column'
        raise DataError(
            f'missing values: column {", column ".join(lacking)} of {len(rows[names[0]])}; set missing = "drop" to '
            f"leave out such rows{others}"
        )


def _task(target: str, y: Array, task: Task | None) -> Task:
    if task not in (None, "classification", "regression"):
        raise DataError(f'task must be "classification" or "regression" (got {task!r})')
    if task == "regression" and y.dtype.kind not in "iuf":
        raise DataError(f"column {target} must be numbers for regression (got {y[0]!r})")
    if task is not None:
        return task
    different = np.unique(y)
    if y.dtype.kind in "iu" and len(different) > MOST_CLASSES:
        hint = 'set task = "regression" if it is a number'
        log.warning(
            "column %s has %d different whole numbers, which are taken as classes; %s", target, len(different), hint
        )
    if y.dtype.kind == "f" and len(different) <= MOST_CLASSES and (different == np.floor(different)).all():
        hint = 'set task = "classification" if these are classes'
        log.warning("column %s has only the numbers %s, and is taken as a number; %s", target, some(different), hint)
    return "regression" if y.dtype.kind == "f" else "classification"


def _plain(name: str, values: Array) -> Array:
    """The values of a column: texts, truth values or numbers."""
    array = plain(f"column {name}", values)
    if array.ndim != 1 or array.dtype.kind not in "Ubiuf":
        kind = "dates or times" if array.dtype.kind in "mM" else str(array.dtype)
        raise DataError(
            f"column {name} has {kind}; turn it into numbers, or leave it out (features lists the columns to use)"
        )
    return array


def _texts(values: Array) -> list[str]:
    """Labels or categories as texts; 1.0 is 1."""
    return [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values.tolist()]


def _standardised(values: Array, mean: Any, std: Any) -> NDArray[np.float32]:
    return np.asarray((values.astype(np.float64) - mean) / std, dtype=np.float32)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"
