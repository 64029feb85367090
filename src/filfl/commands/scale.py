"""What a scale other than the default one will take, said before it starts."""

from collections.abc import Sequence

from filfl.commands.terminal import say
from filfl.config.config import Config
from filfl.config.experiment import LAPTOP
from filfl.display import count
from filfl.simulation.estimate import estimate
from filfl.system import num_cores

PAPER = "paper"


def say_expected_time(scale: str | None, configs: Sequence[Config]) -> None:
    """Print the expected time of these runs, measured with a few training steps."""
    if scale in (None, LAPTOP):
        return
    expected = estimate(configs)
    where = f"on {count(num_cores(), 'core')}" if expected.device == "cpu" else f"on {expected.device}"
    say(
        f"{scale} scale: {count(len(configs), 'run')}, about {duration(expected.seconds)} {where} "
        f"(estimated from {expected.step:.2g} s per training step, measured now)"
    )
    if scale == PAPER and expected.device == "cpu":
        say(
            "the paper scale is for a GPU, but this is the CPU; leave --scale out for a size that a laptop can run",
            style="yellow",
        )


def duration(seconds: float) -> str:
    """A rough duration in words."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(seconds, 1):.0f} seconds"
