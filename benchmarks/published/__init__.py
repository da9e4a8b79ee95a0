"""The algorithms of the papers as further indexes, to measure against; each takes a space and a vocabulary."""

from __future__ import annotations

from published.ap_tree import ApTreeIndex
from published.igpt import IgptIndex, IptIndex
from published.iq_tree import IqTreeIndex
from published.rarest_list import RarestListIndex
from published.rq_tree import RqTreeIndex
from published.stamp import AlwaysFurtherIndex, SpHiIndex, SpIndex, SpRpHiIndex, SpRpStHiIndex

BOOLEAN_INDEXES = {"ap-tree": ApTreeIndex, "ril": RarestListIndex, "iq-tree": IqTreeIndex, "rq-tree": RqTreeIndex}
SIMILAR_INDEXES = {"sp": SpIndex, "sp+hi": SpHiIndex, "sp+rp+hi": SpRpHiIndex, "sp+rp+st+hi": SpRpStHiIndex}
# Without the choice by cost, to see what it brings.
UNCHOSEN = {"sp+rp+st+hi always": AlwaysFurtherIndex}
TOPK_INDEXES = {"igpt": IgptIndex, "ipt": IptIndex}
PUBLISHED = BOOLEAN_INDEXES | SIMILAR_INDEXES | UNCHOSEN | TOPK_INDEXES
