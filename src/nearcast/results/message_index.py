"""Temporary."""
import numpy as np
from nearcast.kernels.verify import verdicts, NEAREST
from nearcast.model import Geographic
class MessageIndex:
    def __init__(self, space): self.space = space
    def append(self, messages): pass
    def expire(self, first_arrival): pass
    def best(self, subscriptions, slots, n_wanted, columns, *, first_arrival, after_time, pool=None):
        rows = np.flatnonzero(columns.arrivals >= first_arrival)
        if after_time is not None: rows = rows[columns.times[rows] > after_time]
        offs=[0]; arr=[]; sc=[]
        for slot, n in zip(slots.tolist(), n_wanted.tolist()):
            ok, scores, dist = verdicts(subscriptions, columns, np.full(rows.size, slot), rows, isinstance(self.space, Geographic), self.space.max_dist)
            s = np.where(subscriptions.kinds[slot] == NEAREST, -dist, scores)[ok]; a = columns.arrivals[rows[ok]]
            if s.size > n:
                keep = s >= np.sort(s)[-n]; s, a = s[keep], a[keep]
            arr.append(a); sc.append(s); offs.append(offs[-1] + a.size)
        return np.array(offs, np.int64), np.concatenate([np.zeros(0, np.int64), *arr]), np.concatenate([np.zeros(0), *sc])
