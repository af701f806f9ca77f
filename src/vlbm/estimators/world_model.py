"""Estimates from a learnt world: fit it once, then let every policy act in it."""
