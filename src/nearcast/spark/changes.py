"""In which order are the changes of a batch made? Many at once, and the positions of a subscriber together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nearcast.model import Id

SUBSCRIBE, UNSUBSCRIBE, MOVE = "subscribe", "unsubscribe", "move"


def runs(ids: Sequence[Id], operations: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Yield the rows of changes in the order in which they are made: rows of one operation that are made at once.

    Registrations keep their order, and no two of a run are of the same subscription. All positions of a subscription
    are in one run, so that they give a net difference, unless it is registered again or removed between them. They wait
    until then, or until the end: positions of others do not depend on them.
    """
    pending: list[int] = []
    pending_ids: set[Id] = set()
    moves: dict[Id, list[int]] = {}
    for row, (key, operation) in enumerate(zip(ids, operations, strict=True)):
        if operation == MOVE:
            moves.setdefault(key, []).append(row)
            continue
        if pending and (key in pending_ids or operation != operations[pending[0]]):
            yield operations[pending[0]], pending
            pending, pending_ids = [], set()
        if key in moves:
            # Of the pending registrations none is of this subscription any more.
            yield MOVE, moves.pop(key)
        pending.append(row)
        pending_ids.add(key)
    if pending:
        yield operations[pending[0]], pending
    if moves:
        yield MOVE, sorted(row for rows in moves.values() for row in rows)
