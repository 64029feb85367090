"""Algorithm 1 of the paper: one round of FilFL, line by line.

Fourati, Kharrat, Aggarwal, Alouini, Canini: FilFL: Client Filtering for Optimized Client Participation in
Federated Learning. ECAI 2024.
"""

from dataclasses import replace

from filfl.availability.base import Ids, among
from filfl.core.exchange import Exchange
from filfl.core.server import Outcome, Record, Server, State
from filfl.rng import stream
from filfl.system import Stopwatch

ALL_REFUSED = "every update was refused"
"""How the note of a round begins in which clients were asked to train, and no update could be used."""


def filfl_round(t: int, state: State, server: Server, clock: Stopwatch) -> tuple[State, Record]:
    """Lines 3-19 of Algorithm 1: (t, state) -> (state, record)."""
    exchange = Exchange(t, state.w, server.clients, server.layout, clock, server.guard)
    S_t = server.availability(t, server.clients.num_clients, server.seed)

    if server.filter_round is not None and server.filters(t, S_t, state):  # line 3
        considered = stream(server.seed, t, "shuffle").permutation(S_t)[: server.cap].tolist()
        outcome = server.filter_round(t, S_t, considered, state, server.selector, exchange)  # lines 4-9
    else:
        outcome = ordinary_round(S_t, state, server, exchange)  # lines 10-16

    memory, w, notes = state.memory, state.w, []
    if outcome.averaged:
        with clock("aggregate"):
            memory, w = server.aggregation(t, state.memory, state.w, outcome.averaged)  # lines 18-19
    else:
        notes.append(f"{why_no_update(S_t, outcome)}; the model is unchanged")

    record = Record.of(t, S_t, outcome, exchange, server, notes + exchange.notes + server.clients.take_notes())
    return state.after(outcome, memory, w), record


def ordinary_round(S_t: Ids, state: State, server: Server, exchange: Exchange) -> Outcome:
    """Lines 11-16: select A_t out of the available part of S^f; only these clients train."""
    filters = server.filter_round is not None
    eligible = tuple(k for k, there in zip(state.S_f, among(state.S_f, S_t), strict=True) if there) if filters else None
    none_left = eligible == () and len(S_t) > 0
    A_t = server.selector(eligible or S_t, exchange, state.latest)  # line 11
    updates = exchange.train(sorted(set(A_t)))  # lines 12-16
    return Outcome(
        S_f=state.S_f,
        eligible=eligible,
        A_t=A_t,
        updates=updates,
        past=replace(state.past, previous=S_t) if filters else state.past,
        latest=server.selector.after_updates(state.latest, updates, state.w),
        recipients=state.recipients,
        notes=["no client of S^f is available; selected from all available clients"] if none_left else [],
    )


def why_no_update(S_t: Ids, outcome: Outcome) -> str:
    """Why there is nothing to average, for the record."""
    if not len(S_t):
        return "no client is available"
    asked = outcome.considered or outcome.A_t
    received = outcome.filtered_clients if outcome.did_filter else outcome.updates
    return ALL_REFUSED if asked and not received else "no client was selected"
