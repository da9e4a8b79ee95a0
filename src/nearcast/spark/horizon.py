"""From which batch on may messages still be needed?"""

from __future__ import annotations

from collections.abc import Mapping

from nearcast.model import MICROSECONDS, CountWindow, Window
from nearcast.spark.plan import BatchInput


def first_in_window(window: Window | None, inputs: Mapping[int, BatchInput], batch: int) -> int:
    """Return the first batch that has messages of the window as it is after a batch; that after it if there is none."""
    first = batch + 1
    if window is None:
        return first
    record = inputs[batch]
    for number in sorted(inputs, reverse=True):
        other = inputs[number]
        if isinstance(window, CountWindow):
            if other.end_arrival <= record.end_arrival - window.size:
                break
            first = number
        elif other.newest is not None:
            horizon = record.clock - round(window.seconds * MICROSECONDS)
            if round(other.newest * MICROSECONDS) > horizon:
                first = number
    return first


def first_recent(window: Window, inputs: Mapping[int, BatchInput]) -> int:
    """Return the first batch with messages of which a later one may be a duplicate; that after all if there is none.

    With a TimeWindow the times of messages decide, whatever the clock of the pipeline.
    """
    last = max(inputs)
    if isinstance(window, CountWindow):
        return first_in_window(window, inputs, last)
    newest = {number: record.newest for number, record in inputs.items() if record.newest is not None}
    horizon = max(newest.values(), default=0.0) - window.seconds
    return min((number for number, moment in newest.items() if moment > horizon), default=last + 1)
