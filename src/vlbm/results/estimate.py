"""Estimate: how good a policy is and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class Estimate:
    """The value of one policy: an average of discounted returns with its uncertainty.

    Attributes:
        policy: Its name.
        value: The estimate.
        standard_error: Of the value.
        lower: End of the interval.
        upper: End of the interval.
        returns: Discounted returns, as far as the method sees any.
        length: Mean length of episodes, as far as the method sees any.
        warnings: What speaks against it.
        details: Diagnostics of the method, by name.
    """

    policy: str
    value: float
    standard_error: float
    lower: float  # of the interval
    upper: float
    returns: Float[np.ndarray, " episodes"] | None  # the discounted ones; None where a method sees none
    length: float | None  # mean length of the episodes
    warnings: tuple[str, ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)  # method-specific diagnostics
    model_values: tuple[float, ...] = ()  # what every model says, where models imagine
    terminated: float | None = None  # share of the imagined episodes

    def __repr__(self) -> str:
        return (
            f"Estimate({self.policy!r}, {self.value:.5g} ± {self.standard_error:.3g}, "
            f"[{self.lower:.5g}, {self.upper:.5g}])"
        )

    def quantile(self, probability: float) -> float | None:
        """None where returns are unknown."""
        return None if self.returns is None else float(np.quantile(self.returns, probability))

    @property
    def quantiles(self) -> dict[str, float | None]:
        return {f"{probability:g}": self.quantile(probability) for probability in QUANTILES}

    def cvar(self, share: float = 0.1) -> float | None:
        """Conditional value at risk: the mean of the worst `share` of returns, if they are known."""
        if self.returns is None:
            return None
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
        model_values=tuple(values.tolist()),
    )
