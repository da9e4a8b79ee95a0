"""The setting of the STAMP paper (section VII-A): its messages, and its filters beside Nearcast's index."""

from __future__ import annotations

from collections.abc import Mapping

from harness.contest import Contest, MakeIndex
from harness.workloads import Points, Workload, joined
from published import SIMILAR_INDEXES

# The paper joins this many places to one message, to have long ones.
N_JOINED = {"poi": 10}


def usual_messages(workload: Workload, n: int) -> Points:
    """Return messages as in the paper."""
    n_joined = N_JOINED.get(workload.name, 1)
    return joined(workload.stream(n * n_joined), n_joined) if n_joined > 1 else workload.stream(n)


def similar_contest(
    workload: Workload, n_messages: int, n_rounds: int, published: Mapping[str, MakeIndex] = SIMILAR_INDEXES
) -> Contest:
    """Return a contest of indexes for similarity subscriptions, with everything compiled.

    A message has thousands of results, so batches and warm-up are small.
    """
    contest = Contest(
        workload,
        published,
        n_messages=n_messages,
        n_rounds=n_rounds,
        n_warm_up=5,
        n_rows=16,
        max_in_memory=2_000_000,
    )
    contest.take_messages(usual_messages(workload, contest.n_streamed))
    contest.compile(workload.interests(1_000))
    return contest
