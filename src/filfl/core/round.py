"""Algorithm 1 of the paper: one round of FilFL, line by line.

Fourati, Kharrat, Aggarwal, Alouini, Canini: FilFL: Client Filtering for Optimized Client Participation in
Federated Learning. ECAI 2024.
"""

from dataclasses import dataclass, replace

from filfl.availability.base import Ids, among
from filfl.core.clients import DISCONNECTED, TIMEOUT
from filfl.core.exchange import Exchange
from filfl.core.server import Outcome, Record, Screen, Server, State
from filfl.rng import stream
from filfl.system import Stopwatch

ALL_REFUSED, NO_REPLY = "every update was refused", "no client replied"
"""How the note of a round begins in which clients were asked to train, and no update could be used: because of what
they sent, or because all of them were late or disconnected."""


@dataclass(frozen=True)
class BegunRound:
    """A round of which it is known who trains."""

    t: int
    state: State
    server: Server
    exchange: Exchange
    S_t: Ids
    considered: list[int] | None = None
    """The clients that train for a filtering; None in an ordinary round."""
    eligible: tuple[int, ...] | None = None
    """In an ordinary round, the available part of S^f; None where nothing filters."""
    A_t: tuple[int, ...] = ()
    """The selected clients of an ordinary round."""

    @property
    def trains(self) -> list[int]:
        """The clients that train."""
        return sorted(set(self.A_t)) if self.considered is None else self.considered


def filfl_round(t: int, state: State, server: Server, clock: Stopwatch) -> tuple[State, Record]:
    """Lines 3-19 of Algorithm 1: (t, state) -> (state, record)."""
    return finish_round(begin_round(t, state, server, clock))


def begin_round(t: int, state: State, server: Server, clock: Stopwatch) -> BegunRound:
    """Lines 3, 10 and 11: whether round t filters, and who trains."""
    exchange = Exchange(t, state.w, server.clients, server.layout, clock, server.guard)
    S_t = server.availability(t, server.clients.num_clients, server.seed)
    if server.filters(t, S_t, state):  # line 3
        considered = stream(server.seed, t, "shuffle").permutation(S_t)[: server.cap].tolist()
        return BegunRound(t, state, server, exchange, S_t, considered)
    filters = server.filter_round is not None  # line 10
    eligible = tuple(k for k, there in zip(state.S_f, among(state.S_f, S_t), strict=True) if there) if filters else None
    A_t = server.selector(eligible or S_t, exchange, state.latest, state.selected)  # line 11
    return BegunRound(t, state, server, exchange, S_t, eligible=eligible, A_t=tuple(A_t))


def finish_round(begun: BegunRound) -> tuple[State, Record]:
    """Lines 4-9 or 12-16, in which the clients train, and lines 18-19."""
    t, state, server, exchange, S_t = begun.t, begun.state, begun.server, begun.exchange, begun.S_t
    if begun.considered is not None and server.filter_round is not None:
        outcome = server.filter_round(t, S_t, begun.considered, state, server.selector, exchange)  # lines 4-9
    else:
        outcome = ordinary_round(begun)  # lines 12-16
    if server.screen is not None:
        outcome = screened(outcome, server.screen, begun)

    memory, w, notes = state.memory, state.w, []
    if outcome.averaged:
        with exchange.clock("aggregate"):
            memory, w = server.aggregation(t, state.memory, state.w, outcome.averaged)  # lines 18-19
    else:
        notes.append(f"{why_no_update(S_t, outcome, exchange)}; the model is unchanged")

    record = Record.of(t, S_t, outcome, exchange, server, notes + exchange.notes + server.clients.take_notes())
    return state.after(outcome, memory, w), record


def ordinary_round(begun: BegunRound) -> Outcome:
    """Lines 12-16: only the selected clients train."""
    state, server, S_t, eligible = begun.state, begun.server, begun.S_t, begun.eligible
    none_left = eligible == () and len(S_t) > 0
    updates = begun.exchange.train(begun.trains)
    return Outcome(
        S_f=state.S_f,
        eligible=eligible,
        A_t=list(begun.A_t),
        updates=updates,
        past=state.past if eligible is None else replace(state.past, previous=S_t),
        latest=server.selector.after_updates(state.latest, updates, state.w),
        recipients=state.recipients,
        notes=["no client of S^f is available; selected from all available clients"] if none_left else [],
    )


def screened(outcome: Outcome, screen: Screen, begun: BegunRound) -> Outcome:
    """Without the updates that hurt by themselves. Not in the paper, and off with its reward (`filter.screen`)."""
    averaged = {k: outcome.updates[k] for k in sorted(set(outcome.A_t)) if k in outcome.updates}
    with begun.exchange.clock("filter"):
        refused = screen(averaged, begun.state.w)
    for k, reason in refused.items():
        begun.exchange.refuse(k, reason)
    return replace(outcome, updates={k: update for k, update in outcome.updates.items() if k not in refused})


def why_no_update(S_t: Ids, outcome: Outcome, exchange: Exchange) -> str:
    """Why there is nothing to average, for the record."""
    if not len(S_t):
        return "no client is available"
    asked = outcome.considered or outcome.A_t
    received = outcome.filtered_clients if outcome.did_filter else outcome.updates
    if not asked or received:
        return "no client was selected"
    absent = all(reason.startswith((TIMEOUT, DISCONNECTED)) for reason in exchange.refused.values())
    return NO_REPLY if exchange.refused and absent else ALL_REFUSED
