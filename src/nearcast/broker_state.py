"""The state of a broker: what its parts hold, as it is saved to a folder and taken over again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from nearcast.columns import MessageColumns
from nearcast.index.book import Book, part_of
from nearcast.intake import Intake
from nearcast.model import Fence, Window, as_settings
from nearcast.results.active import ActiveMessages
from nearcast.results.feeds import Feeds
from nearcast.results.fences import Fences
from nearcast.storage import State

ID_TYPES = {"string": pa.string(), "int64": pa.int64(), "None": None}


@dataclass
class Tally:
    """What a broker has done so far, and the type of its subscription ids."""

    messages: int = 0
    candidates: int = 0
    deliveries: int = 0
    moves: int = 0
    subscription_id_type: pa.DataType | None = None


class Parts(NamedTuple):
    """The parts of a broker that hold something."""

    book: Book
    feeds: Feeds
    intake: Intake
    active: ActiveMessages | None
    fences: Fences | None
    tally: Tally


def state_of(parts: Parts, window: Window | None, lifetime: float | None, fence: Fence | None) -> State:
    """Return all that the parts hold."""
    book, feeds, intake, active, fences, tally = parts
    arrays, subscriptions = book.state()
    tables = {"subscriptions": subscriptions, "vocabulary": book.vocabulary.to_table(), "entries": feeds.state()}
    if feeds.window:
        message_arrays, tables["messages"] = feeds.window.state()
        arrays |= {f"message_{name}": array for name, array in message_arrays.items()}
    if active:
        active_arrays, tables["active"] = active.state()
        arrays |= {f"active_{name}": array for name, array in active_arrays.items()}
    if fences:
        tables["delayed"] = fences.state()
    description = {
        "space": as_settings(book.space),
        "window": as_settings(window),
        "lifetime": None if lifetime is None else str(lifetime),
        "fence": as_settings(fence),
        "now": feeds.window.now if feeds.window else None,
        "active_now": active.now if active else None,
        "n_registered": book.n_registered,
        "n_messages": tally.messages,
        "n_candidates": tally.candidates,
        "n_deliveries": tally.deliveries,
        "n_moves": tally.moves,
        "subscription_id_type": str(tally.subscription_id_type),
        "message_id_type": str(intake.id_type),
    }
    return State(arrays, tables, description)


def restore(parts: Parts, state: State) -> None:
    """Let new parts take over what `state_of` returned."""
    book, feeds, intake, active, fences, tally = parts
    description = state.description
    tally.messages = description["n_messages"]
    tally.candidates = description["n_candidates"]
    tally.deliveries = description["n_deliveries"]
    tally.moves = description["n_moves"]
    tally.subscription_id_type = ID_TYPES[description["subscription_id_type"]]
    intake.id_type = ID_TYPES[description["message_id_type"]]
    book.restore(state.arrays, state.tables["subscriptions"], description["n_registered"])
    if feeds.window:
        feeds.window.now = description["now"]
        messages = MessageColumns(**part_of(state.arrays, "message_"))
        feeds.window.append(messages, state.tables["messages"]["id"].to_pylist())
    if active:
        active.now = description["active_now"]
        active.restore(part_of(state.arrays, "active_"), state.tables["active"])
    if fences:
        fences.restore(state.tables["delayed"])
    feeds.restore(state.tables["entries"])
