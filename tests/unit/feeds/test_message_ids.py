"""The ids of messages are retained while a buffer has them."""

import numpy as np
import pytest

from nearcast.feeds.message_ids import MIN_IDS, MessageIds


@pytest.mark.parametrize("make", [int, str])
def test_ids_of_messages_that_are_held_stay(make):
    ids = MessageIds()
    n = 2 * MIN_IDS
    ids.append(np.arange(7, 7 + n), [make(i) for i in range(7, 7 + n)])
    assert ids.of(np.array([9, 7])).tolist() == [make(9), make(7)]
    assert ids.is_prune_due
    ids.prune([np.array([2000, 8]), np.array([8, 100])])
    assert not ids.is_prune_due
    ids.append(np.array([5000]), [make(5000)])
    assert ids.of(np.array([5000, 100, 8, 2000])).tolist() == [make(5000), make(100), make(8), make(2000)]
