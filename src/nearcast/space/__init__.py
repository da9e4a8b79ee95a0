"""Distances and regions, each exact test beside its conservative box."""
