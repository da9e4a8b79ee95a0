"""The algorithms of the papers as further indexes, to measure against; each takes a space and a vocabulary."""

from __future__ import annotations

from published.ap_tree import ApTreeIndex
from published.iq_tree import IqTreeIndex
from published.rarest_list import RarestListIndex
from published.rq_tree import RqTreeIndex

PUBLISHED = {"ap-tree": ApTreeIndex, "ril": RarestListIndex, "iq-tree": IqTreeIndex, "rq-tree": RqTreeIndex}
