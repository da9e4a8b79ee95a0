"""Which messages count now? The window, its segments, the active messages, and the clock."""
