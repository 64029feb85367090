"""clients.csv: the clients of a run. It is written and read in pieces, because there can be a million clients."""

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from filfl.config.config import Config
from filfl.config.plugins import name_of
from filfl.data import FederatedData
from filfl.errors import RunError
from filfl.runs.files import regular, write_atomic

HEADER = ["id", "name", "num_train", "fault", "trusted"]
YES = "yes"
ROWS = 50_000
"""Clients per piece."""
LONGEST_NAME = 2**30
NOT_SEEN = "not seen"
"""The name of a client number that no node of a federation has."""
ENCODING, ERRORS = "utf-8", "surrogatepass"
"""A name can be any string of a source, also half of a surrogate pair."""


@dataclass(frozen=True)
class ClientTable:
    """The clients of a run, in the order of their ids."""

    names: NDArray[np.generic]
    num_train: NDArray[np.int64]
    fault: NDArray[np.object_]
    """The fault of each client: random or permuted labels, the name of its attack, or both; empty for none."""
    trusted: NDArray[np.bool_]
    """Whether the labels of each client are known to be right."""

    @classmethod
    def of(cls, data: FederatedData, config: Config) -> "ClientTable":
        fault = np.full(data.num_clients, "", dtype=object)
        fault[data.noisy] = f"{config.data.wrong_labels} labels"
        for k in config.attack.bad(data.num_clients, config.seed).tolist():
            attack = name_of("attack", config.attack)
            fault[k] = f"{fault[k]} and {attack}" if fault[k] else attack
        trusted = np.zeros(data.num_clients, dtype=bool)
        trusted[list(data.trusted)] = True
        return cls(data.names, data.num_train, fault, trusted)

    @property
    def noisy(self) -> NDArray[np.bool_]:
        """Whether each client has any fault."""
        return np.asarray(self.fault != "", dtype=bool)

    def seen(self) -> Sequence[int]:
        """The clients without numbers that no node has."""
        if not bool((empty := self.num_train == 0).any()):
            return range(len(self))
        return [k for k in range(len(self)) if not (empty[k] and str(self.names[k]) == NOT_SEEN)]

    def __len__(self) -> int:
        return len(self.fault)

    def write(self, path: Path) -> None:
        write_atomic(path, self._pieces())

    def sha256(self) -> str:
        """The hash of the file that `write` writes."""
        digest = hashlib.sha256()
        for piece in self._pieces():
            digest.update(piece)
        return digest.hexdigest()

    @classmethod
    def read(cls, path: Path) -> "ClientTable":
        try:
            csv.field_size_limit(LONGEST_NAME)  # of the module, whose own limit of 131,072 is below that of a source
            with regular(path).open(encoding=ENCODING, errors=ERRORS, newline="") as file:
                rows = csv.reader(file, strict=True)
                if next(rows, None) != HEADER:
                    raise ValueError("unknown header")
                pieces = [cls.of_columns((), (), (), ())]
                while piece := list(islice(rows, ROWS)):
                    ids, *columns = zip(*piece, strict=True)
                    first = sum(map(len, pieces))
                    if ids != tuple(map(str, range(first, first + len(ids)))):
                        raise ValueError("ids are not consecutive")
                    pieces.append(cls.of_columns(*columns))
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, OverflowError, csv.Error):
            raise RunError(f"{path} is damaged; run again with --resume to repair it") from None
        return cls(*(np.concatenate([getattr(piece, each.name) for piece in pieces]) for each in fields(cls)))

    @classmethod
    def of_columns(
        cls, names: Sequence[str], sizes: Sequence[str], faults: Sequence[str], trusted: Sequence[str]
    ) -> "ClientTable":
        """The clients from the columns of the file."""
        if not {*trusted} <= {"", YES}:
            raise ValueError("trusted is neither yes nor empty")
        return cls(
            np.array(names, dtype=np.str_),
            np.array(sizes, dtype=np.int64),
            np.array(faults, dtype=object),
            np.array([each == YES for each in trusted], dtype=bool),
        )

    def _pieces(self) -> Iterator[bytes]:
        for start in range(0, max(1, len(self)), ROWS):
            text = io.StringIO(newline="")
            # The writer's default CR LF: with another line ending it would not quote a name that contains a CR.
            writer = csv.writer(text)
            if start == 0:
                writer.writerow(HEADER)
            part = slice(start, start + ROWS)
            trusted = [YES if each else "" for each in self.trusted[part].tolist()]
            columns = (self.names[part].tolist(), self.num_train[part].tolist(), self.fault[part].tolist(), trusted)
            writer.writerows(zip(range(len(self))[part], *columns, strict=True))
            yield text.getvalue().encode(ENCODING, ERRORS)
