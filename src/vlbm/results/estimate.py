"""Estimate: how good a policy is and how sure that is; Estimates: the table of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from jaxtyping import Float

from vlbm.errors import require
from vlbm.estimand import Estimand
from vlbm.storage import load_tree, read_information, save_tree, write_text
from vlbm.version import VERSION

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENCE = 0.95
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, eq=False)
class Estimate:
    """The value of one policy: an average of discounted returns with its uncertainty."""

    policy: str
    value: float
    standard_error: float
    lower: float  # of the interval
    upper: float
    returns: Float[np.ndarray, " episodes"]  # the discounted returns themselves
    length: float  # mean length of the episodes
    warnings: tuple[str, ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)  # method-specific diagnostics

    def __repr__(self) -> str:
        return (
            f"Estimate({self.policy!r}, {self.value:.5g} ± {self.standard_error:.3g}, "
            f"[{self.lower:.5g}, {self.upper:.5g}])"
        )

    def quantile(self, probability: float) -> float:
        return float(np.quantile(self.returns, probability))

    @property
    def quantiles(self) -> dict[str, float]:
        return {f"{probability:g}": self.quantile(probability) for probability in QUANTILES}

    def cvar(self, share: float = 0.1) -> float:
        """Conditional value at risk: the mean of the worst `share` of returns."""
        ordered = np.sort(self.returns)
        exact = share * len(ordered)
        whole = int(exact)
        partial = exact - whole
        # The next return counts fractionally, so that CVaR is continuous in `share`.
        total = ordered[:whole].sum() + (partial * ordered[whole] if whole < len(ordered) else 0.0)
        return float(total / exact)


def from_returns(
    policy: str,
    returns: Sequence[Float[np.ndarray, " episodes"]],
    *,
    length: float,
    logged: int | None = None,
    confidence: float = CONFIDENCE,
    warnings: tuple[str, ...] = (),
) -> Estimate:
    """An estimate from the returns that one or several models imagined.

    The variance has three parts. Sampling error of the imagined episodes. Sampling error of the log, where
    `logged` gives its number of episodes: at least that of the mean of as many on-policy returns. And, with
    several models, the spread between them, as for the prediction of one more model: models share the data,
    so their errors do not average out. With a single model this part is unknown and left out.
    """
    from scipy.stats import norm
    from scipy.stats import t as student

    values = np.array([part.mean() for part in returns])
    noise = np.array([part.var(ddof=1) / len(part) if len(part) > 1 else 0.0 for part in returns])
    models = len(values)
    imagined = noise.mean() / models
    log_error = 0.0 if logged is None else float(np.mean([part.var() for part in returns])) / logged
    # The variance between models, less what sampling error explains of it.
    between = max(values.var(ddof=1) - noise.mean(), 0.0) * (1 + 1 / models) if models > 1 else 0.0
    standard_error = float(np.sqrt(imagined + log_error + between))
    tail = 0.5 + confidence / 2
    freedom = max(sum(len(part) for part in returns) - models, 1)
    # The variance between a few models is itself uncertain, hence Student's t.
    quantiles = student.ppf(tail, freedom), norm.ppf(tail), student.ppf(tail, max(models - 1, 1))
    reach = float(np.sqrt(np.dot(np.square(quantiles), (imagined, log_error, between))))
    value = float(values.mean())
    return Estimate(
        policy=policy,
        value=value,
        standard_error=standard_error,
        lower=value - reach,
        upper=value + reach,
        returns=np.concatenate(list(returns)),
        length=length,
        warnings=warnings,
    )


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

    @overload
    def __getitem__(self, index: int | str) -> Estimate: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Estimate, ...]: ...
    def __getitem__(self, index):
        """By index, or by the name of the policy."""
        if not isinstance(index, str):
            return self.rows[index]
        names = [row.policy for row in self.rows]
        if index not in names:
            raise KeyError(f"there is no policy '{index}'; there are {', '.join(names)}")
        return self.rows[names.index(index)]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self.rows)

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
        """Warnings about the estimates as a whole, then about single ones, without duplicates."""
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
        information["returns"] = [len(row.returns) for row in self.rows]
        save_tree(path, [np.asarray(row.returns, np.float64) for row in self.rows], information=information)

    @classmethod
    def load(cls, path: Path) -> Estimates:
        information = read_information(path)
        returns = load_tree(path, [np.zeros(count) for count in information["returns"]])
        rows = tuple(
            Estimate(
                returns=found,
                warnings=tuple(row["warnings"]),
                details=row.get("details", {}),
                **{
                    name: row[name]
                    for name in ("policy", "value", "standard_error", "lower", "upper", "length")
                },
            )
            for row, found in zip(information["policies"], returns, strict=True)
        )
        kept = ("method", "seed", "settings", "data", "seconds", "interrupted")
        return cls(
            rows,
            estimand=_read_estimand(information),
            warnings=tuple(information["warnings"]),
            confidence=information.get("confidence", CONFIDENCE),
            **{name: information[name] for name in kept},
        )

    def report(self, path: str | Path, truth: Mapping[str, float] | None = None, **evidence: Any) -> None:
        """Write one self-contained HTML page; `evidence` are further fields of `Comparison`."""
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


def _read_estimand(information: Mapping[str, Any]) -> Estimand:
    """The estimand of saved estimates; older files have it among the settings."""
    if "estimand" in information:
        return Estimand.from_json(information["estimand"])
    settings = information["settings"]
    return Estimand(information["discount"], settings["horizon"], settings["actions"])


def pool_seeds(found: Sequence[Estimates]) -> Estimates:
    """Pool the estimates of several seeds: mean values, with intervals that include the spread of seeds."""
    if len(found) == 1:
        return found[0]
    rows = tuple(_pool_rows(rows, found[0].confidence) for rows in zip(*found, strict=True))
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
    shared = set.intersection(*(set(row.details) for row in rows))
    return replace(
        rows[0],
        value=value,
        standard_error=float(np.sqrt(np.mean([row.standard_error**2 for row in rows]) + between)),
        lower=value - below,
        upper=value + above,
        returns=np.concatenate([row.returns for row in rows]),
        length=float(np.mean([row.length for row in rows])),
        warnings=tuple(dict.fromkeys(warning for row in rows for warning in row.warnings)),
        details={name: float(np.mean([row.details[name] for row in rows])) for name in sorted(shared)},
    )


def all_warnings(*runs: Estimates) -> list[str]:
    """The warnings of one or several runs; those that differ only in numbers are merged."""
    about: dict[str, list[tuple[str, str]]] = {}
    for row in (row for estimates in runs for row in estimates.rows):
        for text in row.warnings:
            about.setdefault(NUMBER.sub("0", text), []).append((row.policy, text))
    general = dict.fromkeys(text for estimates in runs for text in estimates.warnings)
    return [
        *general,
        *(
            f"{_join_names(list(dict.fromkeys(policy for policy, _ in found)))}: "
            f"{_merge_numbers([text for _, text in found])}"
            for found in about.values()
        ),
    ]


def _merge_numbers(texts: Sequence[str]) -> str:
    """One text for many that differ only in numbers, with the range of each number."""
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = []
    for numbers in columns:
        ordered = sorted(numbers, key=lambda number: float(number.replace(",", "")))
        ends = ordered[0], ordered[-1]
        ranges.append(ends[0] if ends[0] == ends[1] else " to ".join(ends))
    following = iter(ranges)
    return NUMBER.sub(lambda _: next(following), texts[0])


def _join_names(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
