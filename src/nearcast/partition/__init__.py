"""Which shard holds what? Subscriptions are placed by cost, and messages go where they might match."""
