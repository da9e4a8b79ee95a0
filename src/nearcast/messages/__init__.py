"""The current messages: the window, its segments, the active messages, and the clock."""
