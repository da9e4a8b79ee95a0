"""What is each result now? Buffers of top-k and nearest subscriptions, their floors and their expiry."""
