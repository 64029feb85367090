"""What the parts of the campaign share: cases, their seeds, the budget, and how a failure is printed."""

import contextlib
import io
import logging
import random
import sys
import tempfile
import time
import traceback
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from filfl.cli import main
from filfl.errors import FilflError

LONGEST = 3000
"""Characters of an error message: a sentence, not a dump of the input."""


class Wrong(Exception):
    """filfl did something that it must not do. The message says what."""


class Part(ABC):
    """One part of the campaign. `folder` is empty and belongs to it."""

    name: ClassVar[str]
    slow: ClassVar[bool] = False
    """Whether a case starts processes; the slice in `make test` then has only one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def case(self, rng: random.Random) -> None:
        """Make one random case. Raises `Wrong`, or whatever filfl raised that it should not."""

    def corpus(self) -> Mapping[str, Callable[[], None]]:
        """Cases that once broke, by name."""
        return {}


def sentence(call: Callable[[], Any]) -> Any:
    """The result of a call, or the error message where it raised one of filfl's own errors."""
    try:
        return call()
    except FilflError as error:
        check_sentence(str(error))
        return error


def check_sentence(text: str) -> None:
    """An error message is not empty, not endless, and has no control character that a terminal would obey."""
    if not text.strip() or len(text) > LONGEST:
        raise Wrong(f"an error message of {len(text)} characters: {text[:200]!r}")
    if has_control_characters(text):
        raise Wrong(f"control characters in an error message: {text[:200]!a}")


def command(*arguments: str) -> tuple[int, str]:
    """Call `filfl` in this process: its exit code and output. An exception that it lets through is a failure."""
    argv, path, output = sys.argv, list(sys.path), io.StringIO()
    sys.argv = ["filfl", *arguments]
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.path[:] = argv, path
    return code, output.getvalue()


def has_control_characters(text: str) -> bool:
    """Whether a terminal would obey a part of this text."""
    return any(unicodedata.category(each) == "Cc" and each not in "\n\t\r" for each in text)


def stream(seed: int, part: str, number: int) -> random.Random:
    """The randomness of one case: a function of its address alone, so that it can be repeated alone."""
    return random.Random(f"{seed}/{part}/{number}")


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Damaged content: bits or bytes changed, parts removed, repeated or inserted, or cut off."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place = rng.randrange(len(damaged) + 1)
        kind = rng.choice(("bit", "byte", "cut", "remove", "insert", "repeat", "zero"))
        if kind == "bit" and place < len(damaged):
            damaged[place] ^= 1 << rng.randrange(8)
        elif kind == "byte" and place < len(damaged):
            damaged[place] = rng.randrange(256)
        elif kind == "cut":
            del damaged[place:]
        elif kind == "remove":
            del damaged[place : place + rng.randrange(1, 50)]
        elif kind == "insert":
            damaged[place:place] = rng.randbytes(rng.randrange(1, 50))
        elif kind == "repeat":
            damaged[place:place] = damaged[place : place + 40]
        elif kind == "zero":
            damaged[place : place + 16] = bytes(len(damaged[place : place + 16]))
    return bytes(damaged)


def run_part(part: type[Part], seconds: float, seed: int, only: int | None = None, most: int | None = None) -> int:
    """The corpus of a part and random cases until the time is over; returns how many failed.

    only: run this case alone. most: at most so many cases, however much time is left.
    """
    failed = done = 0
    with tempfile.TemporaryDirectory(prefix="filfl-fuzz-") as folder, _quiet():
        made = part(Path(folder))
        start = time.monotonic()
        for name, case in _cases(made, seed, only):
            if done and only is None and time.monotonic() - start > seconds and not name.startswith("corpus"):
                break
            if most is not None and done >= most and not name.startswith("corpus"):
                break
            done += 1
            try:
                case()
            except Exception:
                failed += 1
                print(f"FAILED {part.name} {name}\n{traceback.format_exc()[-4000:]}")
                print(f"to repeat it: python -m tests.fuzz {part.name} --seed {seed} --case {name.split()[-1]}\n")
    print(f"{part.name:12s} {done:5d} cases, {failed} failed, {time.monotonic() - start:.0f} s")
    return failed


def _cases(part: Part, seed: int, only: int | None) -> Iterator[tuple[str, Callable[[], None]]]:
    if only is None:
        for name, known in part.corpus().items():
            yield f"corpus {name!r}", known
    number = 0 if only is None else only
    while True:
        rng = stream(seed, part.name, number)
        yield f"case {number}", lambda rng=rng: part.case(rng)
        if only is not None:
            return
        number += 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of filfl's log, of which damaged data gives many."""
    log = logging.getLogger("filfl")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
