"""Estimates: the table of estimates of several policies by one method."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import jax
import numpy as np
from jaxtyping import Float

from vlbm.errors import require
from vlbm.estimand import Estimand
from vlbm.results.backtest import Backtest
from vlbm.results.behaviour import BehaviourRow
from vlbm.results.estimate import CONFIDENCE, Estimate
from vlbm.results.logged_returns import LoggedReturns
from vlbm.results.merging import merge_texts
from vlbm.schema import check_fields, refuse_damage
from vlbm.storage import load_tree, read_information, save_tree, write_text
from vlbm.version import VERSION


@dataclass(frozen=True, eq=False)
class Origin:
    """What made estimates in this process: their page asks it for what it shows beside them."""

    evaluator: Any
    policies: Mapping[str, Any]
    request: Mapping[str, Any]  # the other arguments of `evaluate`
    backtest: Callable[[Estimates], Estimates] | None = None  # adds one, where one is wanted


@dataclass(frozen=True, eq=False)
class Estimates(Sequence[Estimate]):
    """Estimates of several policies by one method, with what it takes to reproduce them."""

    rows: tuple[Estimate, ...]
    method: str
    seed: int
    estimand: Estimand  # what is estimated
    settings: Mapping[str, Any]
    data: Mapping[str, Any]  # path, episodes, steps
    seconds: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    interrupted: bool = False  # True if Ctrl-C ended the training early
    confidence: float = CONFIDENCE  # of the intervals
    logged: LoggedReturns | None = None  # what the log says of returns like these
    origin: Origin | None = field(default=None, repr=False)  # None if they are from disk
    excluded: Mapping[str, str] = field(default_factory=dict)  # policies without a value, and why
    feasible: tuple[float, float] | None = None  # what values can be, by logged rewards
    behaviour: BehaviourRow | None = None  # what the log itself earned
    backtest: Backtest | None = None

    @overload
    def __getitem__(self, index: int | str) -> Estimate: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Estimate, ...]: ...
    def __getitem__(self, index):
        """By index, or by the name of the policy."""
        if not isinstance(index, str):
            return self.rows[index]
        rows = {row.policy: row for row in self.rows}
        if index not in rows:
            raise KeyError(f"there is no policy '{index}'; there are {', '.join(rows)}")
        return rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """Copies for other processes go without their origin: policies need not be picklable."""
        return {**vars(self), "origin": None}

    @property
    def discount(self) -> float:
        return self.estimand.discount

    @property
    def values(self) -> Float[np.ndarray, " policies"]:
        return np.array([row.value for row in self.rows])

    def rank(self) -> list[Estimate]:
        """Sorted, best first."""
        return sorted(self.rows, key=lambda row: -row.value)

    @property
    def all_warnings(self) -> list[str]:
        """Those about the estimates as a whole, then about single ones, without duplicates."""
        return all_warnings(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "version": VERSION,
            "seed": self.seed,
            "discount": self.discount,
            "estimand": self.estimand.to_json(),
            "confidence": self.confidence,
            "settings": dict(self.settings),
            "data": dict(self.data),
            "seconds": dict(self.seconds),
            "warnings": list(self.warnings),
            "excluded": dict(self.excluded),
            "feasible": None if self.feasible is None else list(self.feasible),
            "behaviour": None if self.behaviour is None else asdict(self.behaviour),
            "backtest": None if self.backtest is None else asdict(self.backtest),
            # Left out where the log is not known.
            **({} if self.logged is None else {"logged_returns": self.logged.to_json()}),
            "policies": [
                {
                    "policy": row.policy,
                    "value": row.value,
                    "standard_error": row.standard_error,
                    "lower": row.lower,
                    "upper": row.upper,
                    "quantiles": row.quantiles,
                    "cvar": {"0.1": row.cvar(0.1)},
                    "length": row.length,
                    "warnings": list(row.warnings),
                    # Left out where a method reports none.
                    **({"details": dict(row.details)} if row.details else {}),
                    **({"model_values": list(row.model_values)} if row.model_values else {}),
                    **({} if row.terminated is None else {"terminated": row.terminated}),
                }
                for row in self.rows
            ],
        }

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with one row for each policy, best first."""
        pandas = require("pandas", extra="pandas", purpose="A DataFrame of estimates")
        columns = ("value", "standard_error", "lower", "upper", "length")
        rows = [
            {
                "policy": row.policy,
                **{name: getattr(row, name) for name in columns},
                "warnings": "; ".join(row.warnings),
            }
            for row in self.rank()
        ]
        return pandas.DataFrame(rows).set_index("policy")

    def save_json(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(self.to_json(), indent=2) + "\n")

    def save(self, path: Path, *, identity: Mapping[str, Any]) -> None:
        """Everything, the returns included; `identity` is what a resumed run must match."""
        information = {**self.to_json(), "identity": dict(identity), "interrupted": self.interrupted}
        returns = [None if row.returns is None else np.asarray(row.returns, np.float64) for row in self.rows]
        information["returns"] = [None if found is None else len(found) for found in returns]
        save_tree(path, [found for found in returns if found is not None], information=information)

    @classmethod
    def load(cls, path: Path) -> Estimates:
        with refuse_damage(path, "make the estimates again"):
            estimates = cls._read(path)
            check_fields(estimates)
            return estimates

    @classmethod
    def _read(cls, path: Path) -> Estimates:
        information = read_information(path)
        counts = information["returns"]
        like: list[Any] = [jax.ShapeDtypeStruct((size,), np.float64) for size in counts if size is not None]
        known = iter(load_tree(path, like))
        rows = tuple(
            Estimate(
                returns=None if count is None else next(known),
                warnings=tuple(row["warnings"]),
                details=row.get("details", {}),
                model_values=tuple(row.get("model_values", ())),
                terminated=row.get("terminated"),
                **{
                    name: row[name]
                    for name in ("policy", "value", "standard_error", "lower", "upper", "length")
                },
            )
            for row, count in zip(information["policies"], counts, strict=True)
        )
        logged = information.get("logged_returns")
        kept = ("method", "seed", "settings", "data", "seconds", "interrupted")
        return cls(
            rows,
            estimand=Estimand.from_json(information["estimand"]),
            warnings=tuple(information["warnings"]),
            confidence=information.get("confidence", CONFIDENCE),
            logged=None if logged is None else LoggedReturns(**logged),
            **_read_log_facts(information),
            **{name: information[name] for name in kept},
        )

    def report(self, path: str | Path, truth: Mapping[str, float] | None = None, **evidence: Any) -> None:
        """Write one self-contained HTML page; `evidence` are further fields of `Comparison`.

        It shows all that the command line's page does if the estimates were made in this process: worlds then
        imagine the same episodes again, which takes as long as `evaluate` did.

        Args:
            path: Where the page goes.
            truth: True values by policy, to be shown beside.
            evidence: Further fields of `Comparison`.
        """
        from vlbm.experiments.comparison import single_comparison

        single_comparison(self, truth=truth, **evidence).report(path)

    def __str__(self) -> str:
        from vlbm.report.tables import as_text

        return as_text(self)

    def __repr__(self) -> str:
        best = max(self.rows, key=lambda row: row.value)
        return f"Estimates({self.method}, {len(self)} policies, discount {self.discount:g}, best {best!r})"

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        from vlbm.report.tables import as_html

        return as_html(self)


def _read_log_facts(information: Mapping[str, Any]) -> dict[str, Any]:
    """What saved estimates are held against; nothing where it was not known, as in older files."""
    feasible, behaviour, backtest = (information.get(name) for name in ("feasible", "behaviour", "backtest"))
    return {
        "excluded": information.get("excluded", {}),
        "feasible": feasible and tuple(feasible),
        "behaviour": behaviour and BehaviourRow(**behaviour),
        "backtest": backtest and Backtest(**backtest),
    }


def pool_seeds(found: Sequence[Estimates]) -> Estimates:
    """Pool the estimates of several seeds: mean values, with intervals that include the spread of seeds."""
    if len(found) == 1:
        return found[0]
    rows = tuple(_pool_rows(rows, found[0].confidence) for rows in zip(*found, strict=True))
    if found[0].feasible is not None:
        low, high = found[0].feasible
        rows = tuple(replace(row, lower=max(row.lower, low), upper=min(row.upper, high)) for row in rows)
    warnings = tuple(dict.fromkeys(warning for estimates in found for warning in estimates.warnings))
    return replace(found[0], rows=rows, warnings=warnings)


def _pool_rows(rows: Sequence[Estimate], confidence: float) -> Estimate:
    from scipy.stats import norm

    values = np.array([row.value for row in rows])
    value, between = float(values.mean()), float(values.var(ddof=1))
    reach = float(norm.ppf((1 + confidence) / 2)) ** 2 * between
    # Seeds share the data, so their errors do not average out.
    below, above = (
        float(np.sqrt(np.mean(np.square(distances)) + reach))
        for distances in ([row.value - row.lower for row in rows], [row.upper - row.value for row in rows])
    )
    returns = [row.returns for row in rows if row.returns is not None]
    shared = set.intersection(*(set(row.details) for row in rows))
    return replace(
        rows[0],
        value=value,
        standard_error=float(np.sqrt(np.mean([row.standard_error**2 for row in rows]) + between)),
        lower=value - below,
        upper=value + above,
        returns=np.concatenate(returns) if len(returns) == len(rows) else None,
        length=_mean_known([row.length for row in rows]),
        model_values=tuple(value for row in rows for value in row.model_values),
        terminated=_mean_known([row.terminated for row in rows]),
        warnings=tuple(dict.fromkeys(warning for row in rows for warning in row.warnings)),
        details={name: float(np.mean([row.details[name] for row in rows])) for name in sorted(shared)},
    )


def _mean_known(values: Sequence[float | None]) -> float | None:
    """The mean, if all are known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def all_warnings(*runs: Estimates) -> list[str]:
    """The warnings of one or several runs; those that differ only in numbers are merged."""
    general = dict.fromkeys(text for estimates in runs for text in estimates.warnings)
    rows = (row for estimates in runs for row in estimates.rows)
    return [*general, *merge_texts((row.policy, text) for row in rows for text in row.warnings)]
