"""The loop over the rounds of a run."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from filfl.core.round import ALL_REFUSED, filfl_round
from filfl.core.server import Record, Server, State
from filfl.errors import RunError
from filfl.runs.callbacks import Callback, Stop
from filfl.runs.store import RunStore
from filfl.system import Stopwatch
from filfl.weights import Weights

Test = Callable[[int, Weights], Mapping[str, Any]]
"""(t, w) -> the part of the record about w: test_accuracy, test_loss, metrics. If clients evaluate w, also notes,
uplink_bytes and downlink_bytes, which are added to those of the round."""

SHARED = ("notes", "uplink_bytes", "downlink_bytes")

UNTESTED: Mapping[str, Any] = {"test_accuracy": None, "test_loss": None, "metrics": {}}


@dataclass
class RunLog:
    """The rounds of a run so far: in the store, for the callbacks, and in memory."""

    callbacks: Sequence[Callback]
    stop_after: int
    """`guard.stop_after`."""
    store: RunStore | None = None
    records: list[dict[str, Any]] = field(default_factory=list)

    def start(self, state: State) -> State:
        """The state in which the run starts or resumes."""
        if self.store and self.store.resumed:
            self.records = list(self.store.records)
            return self.store.resumed
        if self.store:
            self.store.save(0, state)  # identifies the run before its first round
        return state

    def add(self, record: dict[str, Any], state: State, clock: Stopwatch, last: bool) -> str | None:
        """Store a round and call the callbacks. Returns the reason if one of them ends the run."""
        t = record["round"]
        if self.store:
            self.store.append(record)
            with clock("checkpoint"):
                if t % self.store.config.checkpoint.every == 0 or last:
                    self.store.save(t, state)
            self.store.append_times(t, clock.seconds)
        self.records.append(record)
        replies = [callback({**record, "seconds": dict(clock.seconds)}, state) for callback in self.callbacks]
        reasons = [reply.reason for reply in replies if isinstance(reply, Stop)]
        if reasons and not last:
            return "; ".join(reasons)
        stop_if_all_refused(self.records, self.stop_after)
        return None


def run_rounds(
    server: Server, start: State, rounds: int, test: Test, test_every: int, log: RunLog
) -> tuple[State, str | None]:
    """Run the missing rounds: from the first one, or after the last one in the store.

    Returns the last state, and the reason if a callback ended the run before its last round.
    """
    state = log.start(start)
    for t in range(len(log.records) + 1, rounds + 1):
        clock = Stopwatch()
        state, record = run_round(server, t, state, test if t % test_every == 0 or t == rounds else None, clock)
        if stopped := log.add(record, state, clock, last=t == rounds):
            return state, stopped
    return state, None


def stop_if_all_refused(records: Sequence[Mapping[str, Any]], rounds: int) -> None:
    """Raise an error if every update was refused in each of the last rounds. 0 is never."""
    last = records[-rounds:] if rounds else []
    if len(last) < max(1, rounds) or not all(any(n.startswith(ALL_REFUSED) for n in r["notes"]) for r in last):
        return
    refused = last[-1]["refused"]
    example = "".join(f"; in round {last[-1]['round']}, client {k}: {refused[k]}" for k in list(refused)[:1])
    raise RunError(
        f"every update was refused in {rounds} rounds in a row{example}. Correct the cause (the clients, or a bound of "
        "[guard] that is too low; if training diverges, lower the step size) and resume the run, or set "
        "guard.stop_after to 0 to run the remaining rounds anyway"
    )


def run_round(
    server: Server, t: int, state: State, test: Test | None, clock: Stopwatch
) -> tuple[State, dict[str, Any]]:
    """The state after round t, and its record as it is stored. test: None if this round is not tested."""
    state, happened = filfl_round(t, state, server, clock)
    with clock("evaluate"):
        tested = test(t, state.w) if test else UNTESTED
    return state, stored_record(happened, tested)


def stored_record(happened: Record, tested: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a round with the test of its model, as it is stored."""
    record: dict[str, Any] = json_safe(with_test(happened.table(), tested))
    return record


def with_test(within: Mapping[str, Any], tested: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a round together with the test of its model."""
    shared = {key: within[key] + tested[key] for key in SHARED if key in tested}
    return {**within, **tested, **shared, "metrics": {**within["metrics"], **tested["metrics"]}}


def json_safe(value: Any) -> Any:
    """The value as valid JSON: numbers that are not finite become None, keys become strings."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
