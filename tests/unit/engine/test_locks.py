"""Threads get a lock in turn."""

import threading
import time

from nearcast.engine.locks import FairLock


def test_a_fair_lock_is_given_in_turn():
    lock, turns, is_done = FairLock(), [], threading.Event()

    def hold():
        while not is_done.is_set():
            with lock, lock:
                turns.append("other")
                time.sleep(0.001)

    other = threading.Thread(target=hold)
    other.start()
    for _ in range(20):
        with lock:
            turns.append("me")
    is_done.set()
    other.join()
    # At most two turns of the other thread between two of this one: the current one, and one granted before the
    # request.
    gaps = "".join("m" if turn == "me" else "o" for turn in turns).split("m")
    assert max(map(len, gaps[1:-1])) <= 2
