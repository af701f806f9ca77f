"""vlbm inspect."""

from __future__ import annotations

from typing import Annotated

import typer

from vlbm.cli.common import Column, NActions, load_episodes, make_console


def inspect(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Logged episodes.")],
    column: Column = [],  # noqa: B006
    n_actions: NActions = None,
) -> None:
    """Say what is in DATA: episodes, lengths, returns, actions, missing fields, warnings."""
    from vlbm.data.inspect import inspect as inspect_episodes
    from vlbm.data.inspect import render

    render(inspect_episodes(load_episodes(data, column, n_actions)), make_console())
