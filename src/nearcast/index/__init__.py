"""Which subscriptions might match? Postings, indexes, and the subscriptions themselves as flat arrays."""
