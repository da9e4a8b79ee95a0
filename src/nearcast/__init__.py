"""Location-aware publish/subscribe: every message reaches exactly the right subscribers, now."""

from nearcast.errors import NearcastError as NearcastError

__version__ = "0.1.0"
