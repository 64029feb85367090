"""Shakespeare's roles as clients: predict the next character of what they say."""

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np

from filfl.data.base import Dataset
from filfl.data.cache import cached
from filfl.data.characters import ALPHABET, WINDOW, Rows, apart, encode
from filfl.data.federated import FederatedData
from filfl.data.leaf import leaf_files
from filfl.data.roles import Role, leaf_roles, parse_leaf, parse_speeches, speech_roles
from filfl.data.sources import draw_clients, find_source, log, not_tested
from filfl.errors import DataError
from filfl.options import Count, Share

WHAT = "LEAF's shakespeare folder (with train/ and test/), or a .jsonl or .jsonl.gz file of speeches"
FILE = "shakespeare_roles.jsonl.gz"
"""What is read out of the folder FILFL_DATA where data.path is unset."""


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Dataset):
    """Shakespeare's roles as clients: 80 characters, and the next one is the class, out of LEAF's 80 characters.

    Read from LEAF's folder (train/ and test/), or from a file of speeches as JSON lines, where a role's windows slide
    by one character. Windows overlap, so a validation sample shares text with training samples; a test sample of the
    speeches does not. Characters outside the alphabet are taken for spaces.
    """

    path: str | None = None
    """LEAF's folder, or a .jsonl or .jsonl.gz of speeches; unset is shakespeare_roles.jsonl.gz in $FILFL_DATA."""
    clients: Count | None = None
    """So many of the roles, drawn by seed, with their own test samples only; unset is all of them."""
    most: Count | None = None
    """At most so many training and validation windows a client, the first of its text, and of its test windows the
    first in the same proportion, rounded up; unset is all of them."""
    min_chars: Count = 2000
    """Speeches only: roles with less text are left out; 1 keeps all that have a training window."""
    test: Share = 0.1
    """Speeches only: the last share of a role's text is for testing. LEAF's folder has its own."""
    validation: Share = 0.2
    """The share of a client's training windows that validates; 0 is none."""
    text: str | None = None
    """A text file that the server's filtering windows are cut from, one after the other; unset is a text of ours."""

    def read(self, seed: int) -> FederatedData:
        source = find_source(self.path, FILE, WHAT)
        roles, notes = self._from_leaf(source) if source.is_dir() else self._from_speeches(source)
        clients = [role for role in roles if len(role.train)]
        without = [role for role in roles if not len(role.train)]
        if not clients:
            raise DataError(f"{source}: no role has a window to train on")
        if without:
            notes.append(f"{source}: users without training data, whose test samples have no client: {len(without)}")
        server, unknown = self._server_rows()
        if unknown:
            notes.append(f"{self.text}: characters outside the alphabet, taken for spaces: {unknown}")
        for note in notes:
            log.warning(note)
        if self.clients is not None:
            clients, without = [clients[k] for k in draw_clients(len(clients), self.clients, seed)], []
        kept = [role.at_most(self.most) for role in (*clients, *without)]
        train, owners = _joined([role.train for role in kept])
        test, test_owners = _joined([role.test for role in kept])
        untested = not_tested(train[:, :WINDOW], test[:, :WINDOW], source.name)
        train, owners = train[untested], owners[untested]
        data = FederatedData.from_arrays(
            # int8 until the batch; uint8 would be taken for pixels.
            train[:, :WINDOW],
            train[:, WINDOW],
            owners,
            test=(test[:, :WINDOW], test[:, WINDOW], test_owners),
            filtering=(server[:, :WINDOW], server[:, WINDOW]),
            validation=self.validation,
            seed=seed,
        )
        return replace(data, classes=len(ALPHABET), names=np.array([kept[k].name for k in np.unique(owners)]))

    def _from_leaf(self, folder: Path) -> tuple[list[Role], list[str]]:
        files = leaf_files(folder)
        return leaf_roles(folder, cached("shakespeare-leaf-1", files, lambda: parse_leaf(files)))

    def _from_speeches(self, path: Path) -> tuple[list[Role], list[str]]:
        arrays = cached("shakespeare-speeches-1", [path], lambda: parse_speeches(path))
        return speech_roles(path, arrays, self.min_chars, self.test)

    def _server_rows(self) -> tuple[Rows, int]:
        """The filtering set: 80 characters, the 81st is the label, and the next window starts after it."""
        if self.text is None:
            text = resources.files("filfl.data").joinpath("filtering_text.txt").read_text(encoding="utf-8")
        else:
            try:
                text = Path(self.text).read_text(encoding="utf-8")
            except OSError as error:
                raise DataError(f"data.text must be a text file: {self.text} ({error.strerror})") from None
            except ValueError as error:
                raise DataError(f"data.text must be a text file in UTF-8: {self.text} ({error})") from None
        codes, unknown = encode(text)
        rows = apart(codes)
        if not len(rows):
            raise DataError(f"data.text must have at least {WINDOW + 1} characters: {self.text} has {len(codes)}")
        return rows, unknown


def _joined(parts: list[Rows]) -> tuple[Rows, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The rows of all roles, and whose each of them is."""
    return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])
