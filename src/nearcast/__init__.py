"""Location-aware publish/subscribe: every message reaches exactly the right subscribers, now."""

from nearcast.engine.broker import Broker
from nearcast.engine.explanation import Explanation
from nearcast.engine.preview import Bin, Cutoff, Preview
from nearcast.engine.questions import Stats
from nearcast.errors import (
    ExpressionError,
    NearcastError,
    RejectedRowsError,
    Rejection,
    StorageError,
    UnknownSubscriptionError,
)
from nearcast.model import (
    Anywhere,
    Boolean,
    Box,
    Circle,
    CountWindow,
    Delivery,
    Fence,
    Geographic,
    Message,
    Nearest,
    Planar,
    Polygon,
    Similar,
    TimeWindow,
    TopK,
)
from nearcast.text.analyzer import Analyzer
from nearcast.text.vocabulary import Vocabulary, VocabularyBuilder

__version__ = "0.1.0"

__all__ = [
    "Analyzer",
    "Anywhere",
    "Bin",
    "Boolean",
    "Box",
    "Broker",
    "Circle",
    "CountWindow",
    "Cutoff",
    "Delivery",
    "Explanation",
    "ExpressionError",
    "Fence",
    "Geographic",
    "Message",
    "NearcastError",
    "Nearest",
    "Planar",
    "Polygon",
    "Preview",
    "RejectedRowsError",
    "Rejection",
    "Similar",
    "Stats",
    "StorageError",
    "TimeWindow",
    "TopK",
    "UnknownSubscriptionError",
    "Vocabulary",
    "VocabularyBuilder",
]
