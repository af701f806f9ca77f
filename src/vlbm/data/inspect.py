"""Statistics of logged episodes, and warnings about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from vlbm.data.episodes import Episodes
from vlbm.data.outcomes import MOST, share_of_reward

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DISCOUNT = 0.995
SHORT = 0.05  # of the median length
FAR = 50.0  # interquartile ranges from the median
SAMPLE = 100_000  # rows that quartiles are computed from


class Spread(NamedTuple):
    """Smallest, typical (the median of lengths, the mean of returns) and largest."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Inspection:
    """Statistics of logged episodes."""

    episodes: int
    steps: int
    length: Spread
    returns: Spread
    discounted_returns: Spread
    discount: float
    terminated: float  # share of the episodes
    observation_size: int
    discrete: bool
    action_size: int
    action_range: tuple[tuple[float, float], ...]  # of each number in an action vector; empty for ids
    action_counts: tuple[int, ...]  # how often each id was taken; empty for vectors
    has_log_prob: bool
    columns: Mapping[str, tuple[str, ...]]  # of a table, by what they became
    missing: tuple[str, ...]
    assumptions: tuple[str, ...]  # by the reader
    information: tuple[str, ...]
    warnings: tuple[str, ...]


def inspect(episodes: Episodes, *, discount: float = DISCOUNT, gamma: float | None = None) -> Inspection:
    """Statistics and warnings; `gamma` is another name for the discount.

    Args:
        episodes: The logged episodes.
        discount: Of the discounted returns.
        gamma: Another name for the discount.
    """
    discount = discount if gamma is None else gamma
    undiscounted, discounted = episodes.returns(), episodes.returns(discount)
    counts: tuple[int, ...] = ()
    ranges: tuple[tuple[float, float], ...] = ()
    if episodes.discrete:
        counts = tuple(np.bincount(episodes.action, minlength=episodes.action_size).tolist())
    else:
        low, high = episodes.action.min(axis=0), episodes.action.max(axis=0)
        ranges = tuple(zip(low.tolist(), high.tolist(), strict=True))
    return Inspection(
        episodes=episodes.count,
        steps=episodes.steps,
        length=Spread(
            float(episodes.length.min()), float(np.median(episodes.length)), float(episodes.length.max())
        ),
        returns=_summarise_spread(undiscounted),
        discounted_returns=_summarise_spread(discounted),
        discount=discount,
        terminated=float(episodes.terminated.mean()),
        observation_size=episodes.observation_size,
        discrete=episodes.discrete,
        action_size=episodes.action_size,
        action_range=ranges,
        action_counts=counts,
        has_log_prob=episodes.log_prob is not None,
        columns=episodes.columns,
        missing=_list_missing(episodes),
        assumptions=episodes.notes,
        information=(
            *_list_information(ranges, counts),
            *_describe_unknown_outcomes(episodes, serious=False),
        ),
        warnings=tuple(_find_warnings(episodes)),
    )


def _summarise_spread(values: Float[np.ndarray, " episodes"]) -> Spread:
    return Spread(float(values.min()), float(values.mean()), float(values.max()))


def _list_missing(episodes: Episodes) -> tuple[str, ...]:
    if episodes.log_prob is not None:
        return ()
    return ("log-probabilities of the actions: importance sampling must estimate the behaviour policy",)


def _list_information(ranges: tuple[tuple[float, float], ...], counts: tuple[int, ...]) -> tuple[str, ...]:
    outside = [index for index, (low, high) in enumerate(ranges) if low < -1 or high > 1]
    unused = [action for action, count in enumerate(counts) if count == 0]
    said = []
    if outside:
        said.append(f"actions leave [-1, 1] in {_list_some(outside, 'dimension')}")
    if unused:
        said.append(
            f"never taken: {_list_some(unused, 'action')}; policies that take them cannot be evaluated"
        )
    return tuple(said)


def _describe_unknown_outcomes(episodes: Episodes, *, serious: bool) -> Iterable[str]:
    """How much reward goes with steps that many methods cannot use; serious if that is too much for them."""
    unknown = ~episodes.outcome_known
    share = share_of_reward(episodes, unknown)
    if not unknown.any() or (share > MOST) != serious:
        return
    steps = f"the last step of {unknown.sum()} of {episodes.count} episodes, with {share:.1%} of the reward"
    if serious:
        yield (
            f"nothing says what came of {steps}: importance sampling does not need it, but world models "
            "refuse this log; give a column that says which episodes terminated, or next observations"
        )
    else:
        yield f"world models leave out {steps}: nothing says what came of it"


def _find_warnings(episodes: Episodes) -> Iterable[str]:
    if episodes.count == 1:
        yield "there is a single episode: nothing can be held out, and errors cannot be estimated"
    constant = np.flatnonzero(np.ptp(episodes.observation, axis=0) == 0)
    if len(constant):
        yield f"observations never change in {_list_some(constant.tolist(), 'dimension')}"
    if np.ptp(episodes.reward) == 0:
        yield f"every reward is {episodes.reward[0]:g}: only the length tells episodes apart"
    copies = _count_duplicates(episodes)
    if copies:
        yield f"{copies} of {episodes.count} episodes are exact copies of others"
    few = max(int(SHORT * np.median(episodes.length)), 1)
    short = int((episodes.length <= few).sum())
    # Where one step is the rule, as with bandits, it is not short.
    if short and few < np.median(episodes.length):
        yield f"{short} of {episodes.count} episodes are very short: {_count(few, 'step')} or fewer"
    yield from _describe_unknown_outcomes(episodes, serious=True)
    yield from _find_outliers(episodes)


def _find_outliers(episodes: Episodes) -> Iterable[str]:
    """Extreme values, likely errors such as a sensor's error code."""
    named = {"observations": episodes.observation, "rewards": episodes.reward[:, None]}
    if not episodes.discrete:
        named["actions"] = episodes.action
    for name, values in named.items():
        sample = values[:: max(len(values) // SAMPLE, 1)]
        lower, median, upper = np.percentile(sample, (25, 50, 75), axis=0)
        distance = np.maximum(values.max(axis=0) - median, median - values.min(axis=0))
        # Columns with an interquartile range of zero are skipped.
        far = np.flatnonzero((upper > lower) & (distance > FAR * (upper - lower)))
        if len(far):
            worst = far[np.argmax(distance[far] / (upper - lower)[far])]
            column = values[:, worst]
            value = column[np.argmax(np.abs(column - median[worst]))]
            where = f" in {_list_some(far.tolist(), 'dimension')}" if values.shape[1] > 1 else ""
            usual = f"half of them lie in [{lower[worst]:.3g}, {upper[worst]:.3g}]"
            yield f"{name} have extreme values{where}: {value:g}, where {usual}"


def _count_duplicates(episodes: Episodes) -> int:
    """The number of exact duplicates of other episodes."""
    # Only episodes of equal length and return are compared in full.
    key = np.stack([episodes.length.astype(np.float64), episodes.returns()], axis=1)
    _, group, size = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    candidates = np.flatnonzero(size[group.reshape(-1)] > 1)
    seen = set()
    for first, length, index in zip(
        episodes.first_step[candidates], episodes.length[candidates], candidates, strict=True
    ):
        digest = hashlib.blake2b(digest_size=16)
        digest.update(episodes.observation[first + index : first + index + length + 1].tobytes())
        digest.update(episodes.action[first : first + length].tobytes())
        digest.update(episodes.reward[first : first + length].tobytes())
        seen.add(digest.digest())
    return len(candidates) - len(seen)


def _list_some(numbers: list[int], noun: str) -> str:
    """'dimension 3', 'dimensions 1, 2, 5', 'dimensions 0, 1, 2, 3, 4, 5, 6, 7 and 9 more'."""
    shown = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"{noun}{'s' if len(numbers) > 1 else ''} {shown}"


def render(inspection: Inspection, console: Console) -> None:
    """Print an inspection: facts first, then warnings, assumptions and missing fields."""
    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    for _ in range(3):
        facts.add_column(justify="right")
    facts.add_row("", "[dim]lowest", "[dim]typical", "[dim]highest")
    facts.add_row("length (median)", *(f"{value:,.0f}" for value in inspection.length))
    facts.add_row("return (mean)", *(f"{value:z,.2f}" for value in inspection.returns))
    facts.add_row(
        f"return at discount {inspection.discount:g} (mean)",
        *(f"{value:z,.2f}" for value in inspection.discounted_returns),
    )
    log_prob = "recorded" if inspection.has_log_prob else "not recorded"
    words = Table.grid(padding=(0, 2))
    words.add_column(style="bold")
    words.add_column()
    words.add_row("observations", _count(inspection.observation_size, "number"))
    words.add_row("actions", _describe_actions(inspection))
    words.add_row("log-probabilities", log_prob)
    words.add_row("terminated", f"{inspection.terminated:.0%} of the episodes")

    title = f"{_count(inspection.episodes, 'episode')}, {_count(inspection.steps, 'step')}"
    body = Table.grid(padding=(1, 0))
    body.add_row(facts)
    body.add_row(words)
    if inspection.columns:
        body.add_row(_list_columns(inspection.columns))
    console.print(Panel(body, title=f"[bold]{title}", title_align="left", expand=False, padding=(1, 2)))
    for style, word, sentences in (
        ("yellow", "warning", inspection.warnings),
        ("cyan", "assumed", inspection.assumptions),
        ("magenta", "missing", inspection.missing),
        ("dim", "note", inspection.information),
    ):
        for sentence in sentences:
            console.print(f"[{style}]{word:>7}[/]  {escape(sentence)}", highlight=False)


def _list_columns(columns: Mapping[str, tuple[str, ...]]) -> Table:
    """Which columns became what."""
    from rich.markup import escape
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    grid.add_row("", "[dim]columns")
    for role, names in columns.items():
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        grid.add_row(role.replace("_", " "), escape(shown))
    return grid


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _describe_actions(inspection: Inspection) -> str:
    if inspection.discrete:
        total = sum(inspection.action_counts)
        common = np.argsort([-count for count in inspection.action_counts], kind="stable")[:6]
        shares = ", ".join(f"{action}: {inspection.action_counts[action] / total:.0%}" for action in common)
        rest = ", ..." if inspection.action_size > 6 else ""
        return f"{_count(inspection.action_size, 'choice')} ({shares}{rest})"
    low = min(low for low, _ in inspection.action_range)
    high = max(high for _, high in inspection.action_range)
    return f"{_count(inspection.action_size, 'number')} in [{low:.3g}, {high:.3g}]"
