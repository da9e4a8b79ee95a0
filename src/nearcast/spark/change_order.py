"""The order in which the changes of a batch are applied: in runs, all positions of a subscriber in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nearcast.model import Id

SUBSCRIBE, UNSUBSCRIBE, MOVE = "subscribe", "unsubscribe", "move"


def runs(ids: Sequence[Id], operations: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Yield runs of changes in the order in which they are applied: an operation, and rows that are applied at once.

    The first run is of all positions of subscriptions that were registered before the batch, maybe none: they share a
    net difference with the time that passes. Registrations stay in their order, and no two of a run are of the same
    subscription. A position after the registration of its subscription is pending until that is registered again or
    removed, or until the end, so that all of them give a net difference: positions of others do not depend on them.
    """
    first: list[int] = []
    registered: set[Id] = set()
    for row, (key, operation) in enumerate(zip(ids, operations, strict=True)):
        if operation != MOVE:
            registered.add(key)
        elif key not in registered:
            first.append(row)
    yield MOVE, first
    pending: list[int] = []
    pending_ids: set[Id] = set()
    moves: dict[Id, list[int]] = {}
    is_first = set(first)
    for row, (key, operation) in enumerate(zip(ids, operations, strict=True)):
        if row in is_first:
            continue
        if operation == MOVE:
            moves.setdefault(key, []).append(row)
            continue
        if pending and (key in pending_ids or operation != operations[pending[0]]):
            yield operations[pending[0]], pending
            pending, pending_ids = [], set()
        if key in moves:
            # No pending registration is of this subscription, since its last one was yielded above.
            yield MOVE, moves.pop(key)
        pending.append(row)
        pending_ids.add(key)
    if pending:
        yield operations[pending[0]], pending
    if moves:
        yield MOVE, sorted(row for rows in moves.values() for row in rows)
