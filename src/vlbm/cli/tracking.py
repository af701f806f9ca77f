"""--track: what commands that train have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    mlflow = "mlflow"
    tensorboard = "tensorboard"


Track = Annotated[
    Kind | None,
    typer.Option(
        help="Losses, validation and scores for MLflow (at MLFLOW_TRACKING_URI, else in DIR/mlruns) or "
        "TensorBoard (in DIR/tensorboard); each needs the extra of its name."
    ),
]
