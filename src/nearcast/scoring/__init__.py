"""How good is this match? Similarities of place and words, and their blends."""
