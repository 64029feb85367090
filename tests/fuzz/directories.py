"""Run directories: one file of a finished run is damaged. Commands answer with a sentence, and what `--resume` repairs
has the bytes of the run before the damage."""

import os
import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import filfl

from .campaign import Part, Wrong, command, flipped
from .combinations import SMALL

RECORDS = ("rounds.jsonl", "model.safetensors")
LINES = (
    b'{"round": NaN}\n',
    b'{"round": 1, "train": Infinity}\n',
    b'{"round": ' + b"9" * 400 + b"}\n",
    b"[" * 10_000 + b"\n",
    b'{"round": "1"}\n',
    b'{"round": null}\n',
    b"null\n",
    b"\xff\xfe\n",
    b'{"round": 99999999999999999999}\n',
)


class Directories(Part):
    name = "directories"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config = folder / "config.toml"
        self.good = folder / "good"
        filfl.simulate(
            {**SMALL, "execution.mode": "serial", "filter.name": "prune"}, out=self.good, progress=False, say=_silent
        )
        shutil.copy(self.good / "config.toml", self.config)

    def case(self, rng: random.Random) -> None:
        run = self.folder / "run"
        shutil.copytree(self.good, run)
        try:
            files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
            file = rng.choice(files)
            damage(file, rng)
            self.check(run, file.name)
        except Exception as error:
            error.add_note(f"damaged: {file.relative_to(run)}")
            raise
        finally:
            shutil.rmtree(run, ignore_errors=True)

    def corpus(self) -> Mapping[str, Callable[[], None]]:
        """Files of which reading waits or never ends."""
        names = ("rounds.jsonl", "times.jsonl", "clients.csv", "config.toml", "model.safetensors", "summary.json")
        return {
            f"{name} is {what}": partial(self._replaced, name, make)
            for name in names
            for what, make in (("a pipe", os.mkfifo), ("a device", lambda path: path.symlink_to("/dev/zero")))
        }

    def _replaced(self, name: str, make: Callable[[Path], None]) -> None:
        run = self.folder / "run"
        shutil.copytree(self.good, run)
        try:
            (run / name).unlink()
            make(run / name)
            self.check(run, name, resume=False)
        finally:
            shutil.rmtree(run, ignore_errors=True)

    def check(self, run: Path, damaged: str, resume: bool = True) -> None:
        for arguments in (("report", str(run), "--out", str(self.folder / "page.html")), ("clients", str(run))):
            code, shown = command(*arguments)
            if "Traceback" in shown or (code and "error: " not in shown):
                raise Wrong(f"filfl {arguments[0]} ends with {code} and says {shown!r}")
        if not resume:
            return
        code, shown = command("run", str(self.config), "--out", str(run), "--resume")
        if "Traceback" in shown or (code and "error: " not in shown):
            raise Wrong(f"filfl run --resume ends with {code} and says {shown!r}")
        if code == 0:
            for name in RECORDS:
                if (run / name).read_bytes() != (self.good / name).read_bytes():
                    raise Wrong(f"after the repair of {damaged}, {name} has other bytes")


def damage(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    kind = rng.choice(("flip", "flip", "flip", "line", "gone", "folder", "empty"))
    if kind == "flip":
        file.write_bytes(flipped(content, rng))
    elif kind == "line":
        lines = content.splitlines(keepends=True)
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(LINES))
        file.write_bytes(b"".join(lines))
    elif kind == "empty":
        file.write_bytes(b"")
    else:
        file.unlink()
        if kind == "folder":
            file.mkdir()


def _silent(text: str) -> None:
    pass
