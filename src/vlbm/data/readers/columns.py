"""Matching the columns of a table to their roles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vlbm.data.readers import check
from vlbm.errors import InputError

USUAL_NAMES = {
    "observation": ("observation", "observations", "obs", "state", "states", "s"),
    "action": ("action", "actions", "act", "a"),
    "reward": ("reward", "rewards", "rew", "r"),
    "episode": (
        "episode",
        "episode_id",
        "episode_index",
        "ep",
        "trajectory",
        "trajectory_id",
        "traj",
        "traj_id",
    ),
    "step": ("step", "step_id", "step_index", "timestep", "time_step", "t", "time"),
    "terminated": ("terminated", "terminal", "terminals", "termination", "is_terminal", "done", "dones"),
    "truncated": ("truncated", "truncation", "timeout", "timeouts"),
    "log_prob": ("log_prob", "log_probs", "logp", "action_log_prob", "action_log_probs"),
    "propensity": (
        "propensity",
        "propensities",
        "propensity_score",
        "pscore",
        "action_prob",
        "action_probability",
    ),
    "next_observation": (
        "next_observation",
        "next_observations",
        "next_obs",
        "next_state",
        "next_states",
        "next_s",
    ),
}
DELIMITERS = ",;\t"
VECTORS = ("observation", "action", "next_observation")
REQUIRED = ("observation", "action", "reward")


class ColumnMatch(NamedTuple):
    """The columns of one role; `single` if one column has exactly the requested name."""

    names: tuple[str, ...]
    single: bool


@dataclass(frozen=True)
class Columns:
    """Columns by role. None looks for the usual names; an empty string says that there is none.

    Vectors (`observation`, `action`, `next_observation`) take a list of names in order, or one name:
    of a column (a number or, in Parquet, a list), or of a family such as `obs_0, obs_1` or `obs0,
    obs1` (in order of number) or `obs.x, obs.y` (in the file's order). A single column of whole
    numbers named as `action` is read as discrete; a list of one name makes it a vector. `propensity` is the
    probability with which the action was chosen, `log_prob` its logarithm (or that of a density).
    """

    observation: str | Sequence[str] | None = None
    action: str | Sequence[str] | None = None
    reward: str | None = None
    episode: str | None = None
    step: str | None = None
    terminated: str | None = None
    truncated: str | None = None
    log_prob: str | None = None
    propensity: str | None = None
    next_observation: str | Sequence[str] | None = None

    def find(self, path: check.Path, present: Sequence[str]) -> dict[str, ColumnMatch]:
        """The columns of each role that the table has."""
        roles = {role: self._role(path, role, present) for role in USUAL_NAMES}
        found = {role: columns for role, columns in roles.items() if columns is not None}
        if "log_prob" in found and "propensity" in found:
            log_prob, propensity = (found[role].names[0] for role in ("log_prob", "propensity"))
            raise InputError(
                f"{path}: has log-probabilities in '{log_prob}' and probabilities in '{propensity}', which "
                "say the same; leave one out, as by --column propensity= (in Python: propensity='')"
            )
        return found

    def _role(self, path: check.Path, role: str, present: Sequence[str]) -> ColumnMatch | None:
        requested = getattr(self, role)
        if requested is None:
            for name in USUAL_NAMES[role]:
                columns = _match_columns(name, present, family=role in VECTORS, fold=True)
                if columns is not None:
                    return columns
        elif isinstance(requested, str):
            columns = _match_columns(requested, present, family=role in VECTORS) if requested else None
            if columns is not None or (not requested and role not in REQUIRED):
                return columns
            remedy = "name one, or several in a list" if role in VECTORS else "name one"
            raise InputError(
                f"{path}: has no column {requested!r} for {role}: {remedy}; {_list_columns(present)}"
            )
        else:
            self._check_list(path, role, requested)
            absent = [name for name in requested if name not in present]
            if absent or not requested:
                named = f"no column {absent[0]!r}" if absent else "no columns named"
                raise InputError(f"{path}: has {named} for {role}; {_list_columns(present)}")
            return ColumnMatch(tuple(requested), single=False)
        if role in REQUIRED:
            raise InputError(
                f"{path}: no column looks like the {role} ({', '.join(USUAL_NAMES[role])}); "
                f"{_list_columns(present)}. Say which with {role}=NAME"
            )
        return None

    def _check_list(self, path: check.Path, role: str, requested: Sequence[str]) -> None:
        """A list names each column once, and one column where a role takes no more."""
        named = ", ".join(requested)
        if role not in VECTORS and len(requested) > 1:
            raise InputError(f"{path}: {role} is one column, but {named} were named for it; name one")
        if len(set(requested)) < len(requested):
            raise InputError(f"{path}: {named} were named for {role}, one of them twice; name each once")


def _match_columns(
    name: str, present: Sequence[str], *, family: bool, fold: bool = False
) -> ColumnMatch | None:
    """The column of that name or, for vectors, the family of columns that begin with it."""
    case = re.IGNORECASE if fold else re.NOFLAG
    exact = [column for column in present if re.fullmatch(re.escape(name), column, case)]
    if exact:
        return ColumnMatch((exact[0],), single=True)
    if not family:
        return None
    numbered = [
        (re.fullmatch(rf"{re.escape(name)}[_.\[-]?(\d+)\]?", column, case), column) for column in present
    ]
    in_order = sorted((int(match[1]), column) for match, column in numbered if match)
    if in_order:
        return ColumnMatch(tuple(column for _, column in in_order), single=False)
    parts = tuple(column for column in present if re.match(rf"{re.escape(name)}[./]", column, case))
    return ColumnMatch(parts, single=False) if parts else None


def _list_columns(present: Sequence[str]) -> str:
    """The columns of the table, at most 40 of them, and not all of a name that is none."""
    shown = ", ".join(name[:60] for name in present[:40])
    return f"the columns are: {shown}" + (f" and {len(present) - 40} more" if len(present) > 40 else "")
