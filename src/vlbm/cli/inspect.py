"""vlbm inspect."""

from __future__ import annotations

from vlbm.cli.common import Column, Data, NActions, load_episodes, make_console


def inspect(
    data: Data,
    column: Column = [],  # noqa: B006
    n_actions: NActions = None,
) -> None:
    """Say what is in DATA: episodes, lengths, returns, actions, which columns became what, warnings."""
    from vlbm.data.inspect import inspect as inspect_episodes
    from vlbm.data.inspect import render

    render(inspect_episodes(load_episodes(data, column, n_actions)), make_console())
