"""Executors: where the cells of a plan are computed."""
