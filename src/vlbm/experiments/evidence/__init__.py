"""Diagnostics for the page: summaries of the log, of the roll-outs and of the model."""
