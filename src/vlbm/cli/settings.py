"""vlbm settings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vlbm.cli.common import make_console


def settings() -> None:
    """List what --set can change, with the values of every preset."""
    from rich import box
    from rich.table import Table

    from vlbm.estimators.worlds.presets import PRESETS
    from vlbm.estimators.worlds.vlbm import VLBM

    presets = {name: asdict(VLBM(**changes)) for name, changes in PRESETS["vlbm"].items()}
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("setting", style="bold")
    for name in presets:
        table.add_column(name, justify="right")
    for setting in presets["default"]:
        values = [_written(values[setting]) for values in presets.values()]
        differs = any(value != values[0] for value in values)
        table.add_row(setting, *values, style=None if differs else "dim")
    make_console().print(table)


def _written(value: Any) -> str:
    """A value as --set takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower()
