"""clients.csv: who the clients of a run are. Written and read in pieces, since they may be a million."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from filfl.data import FederatedData
from filfl.errors import RunError
from filfl.runs.files import write_whole

HEADER = ["id", "name", "num_train", "noisy"]
ROWS = 50_000
"""Clients at a time."""
ENCODING, ERRORS = "utf-8", "surrogatepass"
"""A name may be any text that a source holds."""


@dataclass(frozen=True)
class Registered:
    """The clients of a run, in the order of their ids."""

    names: NDArray[np.generic]
    num_train: NDArray[np.int64]
    noisy: NDArray[np.bool_]
    """Whose labels are random."""

    @classmethod
    def of(cls, data: FederatedData) -> "Registered":
        return cls(data.names, data.num_train, data.noisy)

    def __len__(self) -> int:
        return len(self.noisy)

    def write(self, path: Path) -> None:
        write_whole(path, self._pieces())

    @classmethod
    def read(cls, path: Path) -> "Registered":
        try:
            with path.open(encoding=ENCODING, errors=ERRORS, newline="") as file:
                rows = csv.reader(file, strict=True)
                if next(rows, None) != HEADER:
                    raise ValueError("the header")
                pieces = [cls(np.empty(0, dtype=np.str_), np.empty(0, dtype=np.int64), np.empty(0, dtype=bool))]
                while piece := list(islice(rows, ROWS)):
                    ids, names, sizes, noisy = zip(*piece, strict=True)
                    first = sum(map(len, pieces))
                    if ids != tuple(map(str, range(first, first + len(ids)))) or not set(noisy) <= {"0", "1"}:
                        raise ValueError("the rows")
                    pieces.append(cls(np.array(names), np.array(sizes, dtype=np.int64), np.array(noisy) == "1"))
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, csv.Error):
            raise RunError(f"{path} is damaged: go on with the run by --resume, which mends it") from None
        return cls(*(np.concatenate([getattr(p, part) for p in pieces]) for part in ("names", "num_train", "noisy")))

    def _pieces(self) -> Iterator[bytes]:
        yield _text([HEADER])
        for start in range(0, len(self), ROWS):
            part = slice(start, start + ROWS)
            ids = range(len(self))[part]
            columns = (self.names[part].tolist(), self.num_train[part].tolist(), self.noisy[part].astype(int).tolist())
            yield _text(list(zip(ids, *columns, strict=True)))


def _text(rows: list[list[str]] | list[tuple[int, str, int, int]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode(ENCODING, ERRORS)
