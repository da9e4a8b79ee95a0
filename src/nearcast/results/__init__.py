"""What is each answer now? The window of messages, and the standings of top-k and nearest subscriptions."""
