"""Scores of matches: similarities of places and of words, and their blends."""
