"""Errors in the words of the command line: what Python calls by an argument is an option there."""

from __future__ import annotations

import re

# Arguments of Python functions as errors name them, and what is typed instead.
OPTIONS = (
    (re.compile(r"\bn_actions=(-?\d+)"), r"--n-actions \1"),
    (re.compile(r"\bn_actions\b"), "--n-actions"),
    (
        re.compile(r"\bcontinue it with resume=True(?=,)"),
        "continue it with --resume, replace it with --overwrite",
    ),
    (re.compile(r"\b(download|resume)=True\b"), r"--\1"),
    (re.compile(r"^(discount|horizon|episodes|confidence) (?=\S+: )"), r"--\1 "),
    (re.compile(r"^(grid|score|workers) (?=\S+: )"), r"--\1 "),
    (re.compile(r"\bhorizon=(?=\S+: )"), "--horizon "),
    (re.compile(r"^((?:\S+: )?)(unknown )?setting (?='?[\w.]+[ =':])"), r"\1\2--set "),
    (re.compile(r"\bSay which with (?=\w+=)"), "Say which with --column "),
)


def name_options(message: str) -> str:
    """The message with options where it names arguments."""
    for pattern, typed in OPTIONS:
        message = pattern.sub(typed, message)
    return message
