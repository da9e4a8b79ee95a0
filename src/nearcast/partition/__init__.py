"""Partitioning: subscriptions are placed in shards by cost, and messages are routed to where they might match."""
