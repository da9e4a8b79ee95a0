"""The floors of feeds: the lowest scores that enter their buffers, and when they rise."""

from __future__ import annotations

import numpy as np

from nearcast.arrays import Float64Array, Int64Array
from nearcast.feeds.buffer_policy import BufferPolicy
from nearcast.feeds.buffers import Buffers
from nearcast.feeds.feed_window import FeedWindow
from nearcast.feeds.sizing import buffer_sizes
from nearcast.index.subscription_store import SubscriptionStore
from nearcast.kernels.verify import NEAREST, TOPK

LOWEST = {TOPK: 0.0, NEAREST: -np.inf}


class Floors:
    """Reads and sets the floors of feeds, which are columns of the subscriptions that the index reads."""

    def __init__(self, store: SubscriptionStore, buffers: Buffers, window: FeedWindow | None, policy: BufferPolicy):
        self._store, self._buffers, self._window, self._policy = store, buffers, window, policy
        self._changed: list[Int64Array] | None = None

    def of(self, feeds: Int64Array) -> Float64Array:
        """Return the floors that feeds are posted for."""
        return self._store.columns.floors[self._buffers.table["slot"][feeds]]

    def lowest(self, feeds: Int64Array) -> Float64Array:
        """Return the floors of feeds that take every message that shares a word."""
        return np.where(self._buffers.table["is_nearest"][feeds] != 0, LOWEST[NEAREST], LOWEST[TOPK])

    def set(self, feeds: Int64Array, floors: Float64Array) -> None:
        """Set the floors that feeds are to be posted for."""
        slots = self._buffers.table["slot"][feeds]
        columns = self._store.columns
        columns.floors[slots] = floors
        columns.posted_floors[slots] = floors
        self.note_changed(feeds)

    def track(self) -> None:
        """Note from now on whose floors change, for `take_changed`."""
        self._changed = []

    def note_changed(self, feeds: Int64Array) -> None:
        """Note that the floors of feeds may have changed."""
        if self._changed is not None and feeds.size:
            self._changed.append(self._buffers.table["order"][feeds])

    def take_changed(self) -> tuple[Int64Array, Float64Array]:
        """Return whose floors have changed since the last call, by registration number, and the floors now."""
        if not self._changed:
            return np.zeros(0, np.int64), np.zeros(0)
        orders, self._changed = np.unique(np.concatenate(self._changed)), []
        columns = self._store.columns
        if not columns.orders.size:
            return np.zeros(0, np.int64), np.zeros(0)
        slots = np.minimum(np.searchsorted(columns.orders, orders), columns.orders.size - 1)
        # Some may have been removed.
        slots = slots[columns.orders[slots] == orders]
        return columns.orders[slots], columns.floors[slots]

    def post(self, feeds: Int64Array) -> None:
        """Post feeds again in the index, for their new floors."""
        if feeds.size:
            self._store.repost(self._buffers.table["slot"][feeds].astype(np.int64))

    def risen(self, feeds: Int64Array) -> Float64Array:
        """Return the floors that feeds should have for the content of their buffers, none lower than it is."""
        rises = self._policy.floor_rises
        floors = self.of(feeds)
        if rises == "never":
            return floors
        table = self._buffers.table[feeds]
        if rises == "rarely":
            sizes, most = self._buffer_sizes(table["k"])
            self._buffers.table["most"][feeds] = most
            is_risen = table["size"] > most
        else:
            sizes = self.wanted_sizes(table["k"])
            is_risen = (table["size"] > sizes) | ((table["size"] >= table["k"]) & (floors > self.lowest(feeds)))
        ranks = np.minimum(sizes, table["size"])[is_risen] - 1
        floors[is_risen] = np.maximum(floors[is_risen], self._buffers.scores_at(feeds[is_risen], ranks))
        return floors

    def wanted_sizes(self, ks: Int64Array) -> Int64Array:
        """Return how many of the best messages the buffer of each feed should start with."""
        assert self._window is not None
        n_messages = max(1, self._window.current_size)
        some, places = np.unique(ks, return_inverse=True)
        return np.array([self._policy.size(k, n_messages) for k in some.tolist()], np.int64)[places]

    def _buffer_sizes(self, ks: Int64Array) -> Int64Array:
        """Return the expected numbers of entries of buffers, and those above which their floors rise."""
        assert self._window is not None
        some, places = np.unique(ks, return_inverse=True)
        sizes = [buffer_sizes(k, n) for k, n in zip(some.tolist(), self.wanted_sizes(some).tolist(), strict=True)]
        return np.array(sizes, np.int64).reshape(-1, 2)[places].T
