"""The results of top-k and nearest subscriptions: their buffers, floors and expiry."""
