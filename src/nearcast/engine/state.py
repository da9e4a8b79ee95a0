"""The state of a broker, as it is saved to a folder and restored from it."""

from __future__ import annotations

import pyarrow as pa

from nearcast.columns import MessageColumns
from nearcast.engine.parts import Parts
from nearcast.engine.settings import Settings, checked_settings
from nearcast.feeds.buffer_policy import BufferPolicyName
from nearcast.index.indexes import IndexName
from nearcast.model import as_settings, of_settings
from nearcast.storage.manifest import State, part_of, prefixed
from nearcast.text.vocabulary import Vocabulary

ID_TYPES = {"string": pa.string(), "int64": pa.int64(), "None": None}


def state_of(parts: Parts) -> State:
    """Return the state of all parts; without messages and words where the messages are shared."""
    settings, tally = parts.settings, parts.tally
    arrays, subscriptions = parts.store.state()
    tables = {
        "subscriptions": subscriptions,
        "entries": parts.feeds.state(),
    }
    if not parts.are_messages_shared:
        tables["vocabulary"] = parts.store.vocabulary.to_table()
    if parts.window is not None and not parts.are_messages_shared:
        message_arrays, tables["messages"] = parts.window.state()
        arrays |= prefixed("message_", message_arrays)
    if parts.active is not None:
        active_arrays, tables["active"] = parts.active.state()
        arrays |= prefixed("active_", active_arrays)
    if parts.fences is not None:
        tables["delayed"] = parts.fences.state()
    description = {
        "space": as_settings(settings.space),
        "window": as_settings(settings.window),
        "lifetime": None if settings.lifetime is None else str(settings.lifetime),
        "fence": as_settings(settings.fence),
        "now": parts.clock.now,
        "clock_follows_rows": parts.clock.follows_rows,
        "n_registered": parts.store.n_registered,
        "n_messages": tally.messages,
        "n_candidates": tally.candidates,
        "n_deliveries": tally.deliveries,
        "n_moves": tally.moves,
        "subscription_id_type": str(tally.subscription_id_type),
        "message_id_type": str(parts.intake.id_type),
    }
    return State(arrays, tables, description)


def settings_of(state: State, index: IndexName, buffer_policy: BufferPolicyName, threads: int) -> Settings:
    """Return the settings of a saved broker; those that change no answer are arguments."""
    space, window, fence = (of_settings(state.description[part]) for part in ("space", "window", "fence"))
    lifetime = state.description["lifetime"]
    return checked_settings(
        space=space,
        vocabulary=Vocabulary.of_table(state.tables["vocabulary"]),
        window=window,
        lifetime=None if lifetime is None else float(lifetime),
        fence=fence,
        index=index,
        buffer_policy=buffer_policy,
        threads=threads,
    )


def restore(parts: Parts, state: State) -> None:
    """Restore what `state_of` returned, in new parts."""
    description, tally = state.description, parts.tally
    tally.messages = description["n_messages"]
    tally.candidates = description["n_candidates"]
    tally.deliveries = description["n_deliveries"]
    tally.moves = description["n_moves"]
    tally.subscription_id_type = ID_TYPES[description["subscription_id_type"]]
    parts.intake.id_type = ID_TYPES[description["message_id_type"]]
    parts.store.restore(state.arrays, state.tables["subscriptions"], description["n_registered"])
    parts.clock.now = description["now"]
    parts.clock.follows_rows = description["clock_follows_rows"]
    if parts.window is not None and not parts.are_messages_shared:
        messages = MessageColumns(**part_of(state.arrays, "message_"))
        parts.window.append(messages, state.tables["messages"]["id"].to_pylist())
    if parts.active is not None:
        parts.active.restore(part_of(state.arrays, "active_"), state.tables["active"])
    if parts.fences is not None:
        parts.fences.restore(state.tables["delayed"])
    parts.feeds.restore(state.tables["entries"])
