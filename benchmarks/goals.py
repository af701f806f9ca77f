"""Every benchmark that `make bench` runs, and what its figures must reach."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """One figure of a benchmark: what it is, and the bound it must keep; without one it is only shown."""

    figure: str  # its name among those the benchmark tells
    meaning: str
    bound: tuple[str, float] | None = None  # ">=" or "<=", and the number
    unit: str = ""

    @property
    def must(self) -> str:
        return "" if self.bound is None else f"{self.bound[0]} {self.bound[1]:.3g} {self.unit}".strip()

    def met(self, value: float) -> bool | None:
        if self.bound is None:
            return None
        compare: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}
        return compare[self.bound[0]](value, self.bound[1])


class Benchmark(NamedTuple):
    """A script, run on so many cores; without goals it writes rows with goals of its own to `--json`."""

    name: str
    script: str
    goals: tuple[Goal, ...]
    arguments: tuple[str, ...] = ()
    cores: int = 1
    devices: bool = False  # whether it uses cores as the command line does; otherwise there is one device

    @property
    def environment(self) -> dict[str, str]:
        """What the process is told of its cores."""
        one_thread = {} if self.cores > 1 else {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        return {**one_thread, **({} if self.devices else {"JAX_NUM_CPU_DEVICES": "1"})}


def at_least(value: float) -> tuple[str, float]:
    return (">=", value)


def at_most(value: float) -> tuple[str, float]:
    return ("<=", value)


def _step(cores: int) -> Benchmark:
    goals = (
        Goal("ratio", "training step of the paper's sizes, times the eager yardstick's speed"),
        Goal("seconds", "the same step", unit="s"),
    )
    return Benchmark("step", "step.py", goals, cores=cores, devices=True)


def _rollout(cores: int) -> Benchmark:
    goals = (
        Goal("all_ratio", "roll-out, times plain eager PyTorch's speed", at_least(2.5)),
        Goal("all_tuned_ratio", "roll-out, times tuned eager PyTorch's speed"),
        Goal("episode_times", "one imagined episode, times the authors' speed (82 s)", at_least(500)),
    )
    return Benchmark("rollout", "rollout.py", _for_all(goals, cores), cores=cores, devices=True)


def _fqe(cores: int) -> Benchmark:
    goals = (
        Goal("wide_ratio", "FQE of 11 policies, times d3rlpy's speed, its default network", at_least(3)),
        Goal("wide_first_ratio", "the same with compiling, which a second run does not need"),
        Goal("narrow_ratio", "the same, the same network with 64 units a layer", at_least(3)),
        Goal(
            "own_ratio",
            "FQE of 11 policies, times d3rlpy's speed, a network as large as vlbm's default",
            at_least(3),
        ),
        Goal("policies_ratio", "FQE of 11 policies, times the cost of one"),
    )
    return Benchmark("fqe", "fqe.py", _for_all(goals, cores), cores=cores, devices=True)


def _for_all(goals: tuple[Goal, ...], cores: int) -> tuple[Goal, ...]:
    """Bounds are for a machine of two cores, all used; on one core figures are only shown."""
    return goals if cores > 1 else tuple(goal._replace(bound=None) for goal in goals)


IMPORTANCE = (
    Goal("ratio", "importance sampling of 11 policies, times SCOPE-RL's speed"),
    Goal("difference", "largest relative difference between the two", at_most(1e-5)),
)
STARTUP = (
    Goal("help_seconds", "vlbm --help", at_most(0.4), "s"),
    Goal("import_seconds", "import vlbm", unit="s"),
    Goal("second_seconds", "second run of a shape, start to first training step", at_most(2), "s"),
    Goal("first_seconds", "first run of the shape", unit="s"),
)
GROWTH = tuple(
    Goal(f"{name}_exponent", f"{what} grows with its number to the power")
    for name, what in (
        ("window", "a training step by steps of a window"),
        ("branches", "a training step by branches"),
        ("episodes", "a roll-out by episodes"),
        ("policies", "a roll-out by policies"),
    )
)

BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark("training", "training.py", (), cores=2, devices=True),
    *(benchmark for cores in (1, 2) for benchmark in (_step(cores), _rollout(cores), _fqe(cores))),
    Benchmark("importance", "importance.py", IMPORTANCE),
    Benchmark("startup", "startup.py", STARTUP),
    Benchmark("growth", "growth.py", GROWTH),
    Benchmark("loading", "loading.py", ()),
    Benchmark("memory", "memory.py", ()),
)


def names() -> list[str]:
    return list(dict.fromkeys(benchmark.name for benchmark in BENCHMARKS))


def figure_of(figures: dict[str, Any], goal: Goal) -> float | str:
    """The number, or why there is none."""
    value = figures.get(goal.figure, "not told")
    return value if isinstance(value, str) else float(value)
