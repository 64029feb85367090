"""Ctrl-C: the first one ends a command in order, and further ones do not disturb that."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""
GRACE = 10.0
"""Seconds after the first Ctrl-C in which others are ignored. A later one ends the process at once."""


class Interrupts:
    """Whether Ctrl-C was pressed, and when."""

    def __init__(self) -> None:
        self.first: float | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - self.first > GRACE:
            os._exit(INTERRUPTED)


@contextmanager
def ending_once() -> Iterator[Interrupts]:
    """Turn the first Ctrl-C into a KeyboardInterrupt, and ignore others while the command ends.

    In a block that ends in the middle of its cleanup, files would stay locked, and the last word would be a traceback.
    """
    interrupts = Interrupts()
    # Only the main thread can set a handler, and a Ctrl-C that is ignored stays ignored, as in a background job.
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not default:
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts.handle)
    try:
        yield interrupts
    finally:
        # After the first one, what Python itself does at its end must not be disturbed either.
        signal.signal(signal.SIGINT, signal.default_int_handler if interrupts.first is None else signal.SIG_IGN)
