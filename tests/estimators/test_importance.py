"""Importance sampling: by hand on a few steps, unbiased over many logs, and honest where it breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from systems import Table
from vlbm.data.episodes import Episodes
from vlbm.errors import InputError
from vlbm.estimators import intervals
from vlbm.estimators.importance import ImportanceEvaluator, ImportanceSampling, quotients
from vlbm.estimators.importance_weights import LARGEST_LOG_WEIGHT, cumulate, rectangle
from vlbm.estimators.intervals import Quotients, bernstein, bootstrap
from vlbm.estimators.likelihood import log_probs
from vlbm.policies import FunctionPolicy, Layer, MLPPolicy
from vlbm.suites.exact import chain, cliff, graph

KINDS = ("is", "wis", "pdis", "wpdis")


def episodes_of(
    actions: list[list[int]], rewards: list[list[float]], *, behaviour=(0.5, 0.5), terminated: Any = None
) -> Episodes:
    length = np.array([len(row) for row in actions])
    action = np.concatenate([np.array(row, int) for row in actions])
    return Episodes(
        observation=np.zeros((length.sum() + len(length), 1), np.float32),
        action=action,
        reward=np.concatenate([np.array(row, float) for row in rewards]),
        length=length,
        terminated=np.ones(len(length), bool) if terminated is None else np.array(terminated),
        log_prob=np.log(np.array(behaviour))[action],
        n_actions=len(behaviour),
    )


def estimate(kind: str, episodes: Episodes, policy: Any, *, discount: float = 1.0, **settings: Any):
    options = {"horizon": settings.pop("horizon", None), "actions": settings.pop("actions", "sample")}
    estimator = ImportanceSampling(kind=kind, **{"resamples": 50, **settings})  # type: ignore[arg-type]
    return estimator.fit(episodes).evaluate({"it": policy}, discount=discount, **options)[0]


# Two episodes of different lengths, behaviour (1/2, 1/2), policy (3/4, 1/4): ratios 3/2 and 1/2.
RAGGED = episodes_of([[0, 0, 1], [1]], [[1.0, 2.0, 4.0], [10.0]])
POLICY = Table(0.75, 0.25)
FIRST = (1.5, 1.5**2, 1.5**2 * 0.5)  # weights of the first episode; the second's is 0.5


def test_every_kind_is_its_formula_on_ragged_episodes():
    half = 0.5  # the discount
    first = 1 + half * 2 + half**2 * 4
    expected = {
        "is": (FIRST[2] * first + 0.5 * 10) / 2,
        "wis": (FIRST[2] * first + 0.5 * 10) / (FIRST[2] + 0.5),
        "pdis": (FIRST[0] * 1 + half * FIRST[1] * 2 + half**2 * FIRST[2] * 4 + 0.5 * 10) / 2,
        "wpdis": (FIRST[0] * 1 + 0.5 * 10) / (FIRST[0] + 0.5)
        + half * FIRST[1] * 2 / (FIRST[1] + 0.5)
        + half**2 * FIRST[2] * 4 / (FIRST[2] + 0.5),
    }
    for kind, value in expected.items():
        assert estimate(kind, RAGGED, POLICY, discount=half).value == pytest.approx(value, rel=1e-12), kind


def test_an_ended_episode_carries_its_last_weight():
    log_ratio = log_probs({"it": POLICY}, RAGGED)["it"] - RAGGED.log_prob
    weights = np.exp(cumulate(log_ratio, RAGGED).log)
    np.testing.assert_allclose(weights, [FIRST, (0.5, 0.5, 0.5)], rtol=1e-12)
    # The two other conventions give other numbers.
    found = estimate("wpdis", RAGGED, POLICY).value
    start = (FIRST[0] * 1 + 0.5 * 10) / 2
    live_only = start + 2 + 4
    weighing_one = start + FIRST[1] * 2 / (FIRST[1] + 1) + FIRST[2] * 4 / (FIRST[2] + 1)
    assert abs(found - live_only) > 0.1
    assert abs(found - weighing_one) > 0.1


def test_at_horizon_one_importance_sampling_is_the_bandit_formula():
    random = np.random.default_rng(0)
    behaviour, target = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.4, 0.1])
    action = random.choice(3, size=500, p=behaviour)
    reward = random.normal(size=500) + action
    logged = episodes_of(action[:, None].tolist(), reward[:, None].tolist(), behaviour=tuple(behaviour))
    weight = target[action] / behaviour[action]
    for kind in ("is", "pdis"):
        assert estimate(kind, logged, Table(*target)).value == pytest.approx(
            np.mean(weight * reward), abs=1e-9
        )
    for kind in ("wis", "wpdis"):
        assert estimate(kind, logged, Table(*target)).value == pytest.approx(
            (weight * reward).sum() / weight.sum(), abs=1e-9
        )


def terms_of(evaluator: ImportanceEvaluator, likelihood: np.ndarray, discount: float) -> Quotients:
    """What every episode contributes to the estimate for a policy of this likelihood."""
    reward = rectangle(evaluator.log.reward, evaluator.log)
    reward = reward * discount ** np.arange(reward.shape[1])
    return quotients(evaluator.settings.kind, evaluator.weights(likelihood), reward)


@pytest.mark.parametrize("make", [graph, chain, cliff], ids=["graph", "chain", "cliff"])
@pytest.mark.parametrize("kind", ["is", "pdis"])
def test_is_and_pdis_are_unbiased_over_a_thousand_logs(kind, make):
    system = make()
    name, policy = list(system.targets.items())[1]
    horizon = min(system.horizon, 25)
    sets, size = 1000, 20
    logged = system.sample(system.behaviour, episodes=sets * size, seed=11, horizon=horizon)
    truth = system.value(policy, discount=system.discount, horizon=horizon)
    likelihood = log_probs({name: policy}, logged)[name]

    def z_score(**settings: Any) -> float:
        evaluator = ImportanceSampling(kind=kind, **settings).fit(logged)
        terms = terms_of(evaluator, likelihood, system.discount)
        # Every data set has `size` of the episodes; an estimate is the mean of their terms.
        values = terms.scale * terms.numerator[:, 0].reshape(sets, size).mean(axis=1)
        return float((values.mean() - truth) / (values.std(ddof=1) / np.sqrt(sets)))

    assert abs(z_score()) < 3.5
    # The same test finds a bias where there is one.
    assert abs(z_score(clip=0.5)) > 10


def test_an_estimate_is_the_mean_of_its_terms():
    system = graph()
    logged = system.sample(system.behaviour, episodes=40, seed=0)
    policy = system.targets["odd 0.8"]
    evaluator = ImportanceSampling(kind="pdis").fit(logged)
    likelihood = log_probs({"it": policy}, logged)["it"]
    terms = terms_of(evaluator, likelihood, 0.98)
    row = evaluator.evaluate(policy, discount=0.98, actions="sample")[0]
    assert row.value == pytest.approx(terms.scale * terms.numerator.mean(), rel=1e-12)


def test_the_effective_sample_size_is_in_the_json():
    estimates = ImportanceSampling(resamples=10).fit(RAGGED).evaluate(POLICY, actions="sample")
    (row,) = estimates.to_json()["policies"]
    weight = np.array([FIRST[2], 0.5])
    assert row["details"]["effective_sample_size"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert row["details"]["mean_weight"] == pytest.approx(weight.mean())


def test_the_behaviour_policy_is_worth_what_was_logged():
    system = chain()
    logged = system.sample(system.behaviour, episodes=100, seed=0)
    for kind in KINDS:
        row = estimate(kind, logged, system.behaviour, discount=0.95)
        assert row.value == pytest.approx(logged.returns(0.95).mean(), rel=1e-5)
        assert row.details["effective_sample_size"] == pytest.approx(100, rel=1e-4)
        np.testing.assert_allclose(np.sort(row.returns), np.sort(logged.returns(0.95)), rtol=1e-9)
        assert not row.warnings


def test_rewards_past_the_horizon_do_not_count():
    cut = episodes_of([[0, 0], [1]], [[1.0, 2.0], [10.0]])
    for kind in KINDS:
        short = estimate(kind, RAGGED, POLICY, horizon=2)
        assert short.value == pytest.approx(estimate(kind, cut, POLICY).value, rel=1e-12)
        assert short.value != pytest.approx(estimate(kind, RAGGED, POLICY).value)


def test_clipping_bounds_the_weights():
    assert estimate("is", RAGGED, POLICY, clip=1.0).value == pytest.approx((1.0 * 7 + 0.5 * 10) / 2)
    # The weight of the whole first episode is 1.125 and stays; on the way there it is larger.
    assert estimate("is", RAGGED, POLICY, clip=1.2).value == pytest.approx((1.125 * 7 + 0.5 * 10) / 2)
    clipped = (1.2 * 1 + 1.2 * 2 + 1.125 * 4 + 0.5 * 10) / 2
    assert estimate("pdis", RAGGED, POLICY, clip=1.2).value == pytest.approx(clipped)


def test_returns_tell_the_policy_s_distribution_of_returns():
    system = graph()
    logged = system.sample(system.behaviour, episodes=20_000, seed=0)
    policy = system.targets["odd 0.8"]
    own = system.sample(policy, episodes=20_000, seed=1).returns(0.98)
    row = estimate("wpdis", logged, policy, discount=0.98)
    assert row.cvar(0.5) == pytest.approx(np.sort(own)[:10_000].mean(), abs=0.1)
    assert row.cvar(0.5) - np.sort(logged.returns(0.98))[:10_000].mean() > 0.3


def test_policies_in_jax_and_outside_it_are_asked_alike_and_keep_their_order():
    system = chain()
    logged = system.sample(system.behaviour, episodes=30, seed=0)
    traced = list(system.targets.values())
    wide = MLPPolicy(
        [], Layer(np.zeros((2, 5), np.float32), np.log([0.3, 0.7]).astype(np.float32)),
        nonlinearity="relu", distribution="categorical",
    )  # fmt: skip
    policies = {"a": traced[0], "host": Table(0.3, 0.7), "wide": wide, "b": traced[1]}
    found = log_probs(policies, logged)
    assert list(found) == list(policies)
    np.testing.assert_allclose(found["host"], found["wide"], atol=1e-6)
    np.testing.assert_allclose(found["b"], np.log([0.3, 0.7])[logged.action], atol=1e-6)
    assert np.abs(found["a"] - found["b"]).max() > 0.1


def test_a_log_longer_than_a_chunk_is_read_in_whole(monkeypatch):
    system = chain()
    logged = system.sample(system.behaviour, episodes=30, seed=0)
    whole = log_probs(system.targets, logged)
    monkeypatch.setattr("vlbm.estimators.likelihood.CHUNK", 64)
    for name, values in log_probs(system.targets, logged).items():
        np.testing.assert_array_equal(values, whole[name])


# What breaks, and how that is said.


def finite(row) -> bool:
    numbers = (row.value, row.standard_error, row.lower, row.upper, row.length, *row.details.values())
    return bool(np.isfinite([*numbers, *row.returns]).all())


@pytest.mark.parametrize("kind", KINDS)
def test_zero_overlap_is_said_and_the_interval_is_the_whole_range(kind):
    logged = episodes_of([[0, 0], [0], [0, 0, 0]], [[1.0, 1.0], [5.0], [1.0, 1.0, 1.0]])
    row = estimate(kind, logged, Table(0.0, 1.0))
    assert finite(row)
    assert any("no overlap" in text for text in row.warnings)
    # `is` and `pdis` find 0, but a step earns 1 at least.
    assert row.value == (1.0 if kind in ("is", "pdis") else pytest.approx(10 / 3))
    assert row.lower == min(2.0, row.value)
    assert row.upper == 5.0
    assert row.standard_error > 0
    assert row.details["effective_sample_size"] == 0
    bounded = estimate(kind, logged, Table(0.0, 1.0), bounds=(-8.0, 9.0))
    assert (bounded.lower, bounded.upper) == (-8.0, 9.0)


def test_overlap_that_ends_on_the_way_is_said():
    logged = episodes_of([[1, 0], [1, 0]], [[1.0, 3.0], [2.0, 5.0]])
    never = Table(0.0, 1.0)
    per_decision = estimate("pdis", logged, never)
    assert per_decision.value == pytest.approx(2 * 1.5)
    weighted = estimate("wpdis", logged, never)
    assert weighted.value == pytest.approx(1.5 + 4.0)
    for row in (per_decision, weighted):
        assert finite(row)
        assert any("no overlap from step 1 on" in text for text in row.warnings)
    for kind in ("is", "wis"):
        assert any("no overlap" in text for text in estimate(kind, logged, never).warnings)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_overflow_in_a_thousand_steps_are_said(kind):
    random = np.random.default_rng(0)
    actions = random.choice(2, size=(20, 1000), p=[0.9, 0.1])
    logged = episodes_of(actions.tolist(), np.ones((20, 1000)).tolist(), behaviour=(0.01, 0.99))
    row = estimate(kind, logged, Table(0.9, 0.1))
    assert finite(row)
    assert row.warnings
    if kind in ("is", "pdis"):
        assert any("overflow" in text for text in row.warnings)
        assert row.value <= np.exp(LARGEST_LOG_WEIGHT) * 1000
    else:
        assert row.value == pytest.approx(1000)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_vanish_in_a_thousand_steps_are_said(kind):
    logged = episodes_of(np.zeros((5, 1000), int).tolist(), np.ones((5, 1000)).tolist())
    row = estimate(kind, logged, Table(0.001, 0.999))
    assert finite(row)
    assert any("average" in text for text in row.warnings)


@pytest.mark.parametrize("shift", [-3000.0, 3000.0])
def test_self_normalised_kinds_do_not_mind_the_size_of_the_weights(shift):
    system = chain()
    logged = system.sample(system.behaviour, episodes=50, seed=0)
    moved = replace(logged, log_prob=logged.log_prob - shift * (logged.time == 0), n_actions=2)
    policy = system.targets["on 0.7"]
    for kind in ("wis", "wpdis"):
        evaluator = ImportanceSampling(kind=kind, resamples=50).fit(logged)
        plain = evaluator.evaluate(policy, actions="sample")[0]
        # Past the check of the log, which rightly finds such numbers impossible.
        shifted = replace(evaluator, log_prob=moved.log_prob).evaluate(policy, actions="sample")[0]
        assert shifted.value == pytest.approx(plain.value, rel=1e-9)
        assert finite(shifted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_episode_is_said_to_know_nothing_of_its_luck(kind):
    logged = episodes_of([[0, 1]], [[1.0, 2.0]])
    row = estimate(kind, logged, POLICY)
    assert finite(row)
    assert any("single episode" in text for text in row.warnings)
    bounded = estimate(kind, logged, POLICY, bounds=(0.0, 9.0))
    assert (bounded.lower, bounded.upper) == (0.0, 9.0)


def test_weight_in_one_episode_is_said():
    logged = episodes_of([[0] * 12, *[[1] * 12] * 30], [[1.0] * 12, *[[2.0] * 12] * 30])
    row = estimate("wis", logged, Table(0.9, 0.1))
    assert row.details["largest_weight_share"] > 0.99
    assert row.details["effective_sample_size"] == pytest.approx(1.0, abs=0.01)
    assert any("one episode of 31 carries 100% of the weight" in text for text in row.warnings)
    assert any("worth 1.0" in text for text in row.warnings)


def test_episodes_cut_off_early_are_said():
    logged = episodes_of([[0, 1], [1]], [[1.0, 2.0], [1.0]], terminated=[False, False])
    estimates = ImportanceSampling(resamples=10).fit(logged).evaluate(POLICY, actions="sample")
    assert any("1 of 2 episodes were cut off before step 2" in text for text in estimates.warnings)
    assert not ImportanceSampling(resamples=10).fit(RAGGED).evaluate(POLICY, actions="sample").warnings


def test_a_policy_without_log_probability_is_refused_by_name():
    with pytest.raises(InputError, match=r"policy 'it' has no log-probability.*such as vlbm or fqe"):
        estimate("wis", RAGGED, FunctionPolicy(lambda seen: np.zeros(len(seen))))


def test_log_probabilities_that_are_none_are_refused():
    class Broken(Table):
        def log_prob(self, observation, action):
            return np.full(len(action), np.nan)

    class Column(Table):
        def log_prob(self, observation, action):
            return super().log_prob(observation, action)[:, None]

    with pytest.raises(InputError, match="policy 'it' gave the log-probability nan"):
        estimate("is", RAGGED, Broken(0.5, 0.5))
    with pytest.raises(InputError, match=r"policy 'it'.*one per action"):
        estimate("is", RAGGED, Column(0.5, 0.5))
    for wrong, message in ((np.full(4, -np.inf), "episode 0, step 0"), (np.full(4, 0.5), "logarithms")):
        with pytest.raises(InputError, match=message):
            ImportanceSampling().fit(replace(RAGGED, log_prob=wrong))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "psis"}, "is, wis, pdis, wpdis"),
        ({"clip": 0.0}, "clip"),
        ({"resamples": 0}, "resamples"),
        ({"interval": "bernstein"}, "needs bounds"),
        ({"bounds": (1.0, 0.0)}, "lower one first"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        ImportanceSampling(**settings)


# Intervals


def some_quotients(columns: int = 3, episodes: int = 12) -> Quotients:
    random = np.random.default_rng(1)
    bottom = random.exponential(size=(episodes, columns))
    bottom[:, -1] = 0.0
    bottom[0, -1] = 1.0  # a column that most resamples miss
    return Quotients(bottom * random.normal(size=bottom.shape), bottom, np.arange(columns) * 1.0, 2.0)


def by_hand(statistic: Quotients, chosen: np.ndarray) -> float:
    top, bottom = statistic.numerator[chosen].sum(axis=0), statistic.denominator[chosen].sum(axis=0)
    parts = [
        above / below if below > 0 else other
        for above, below, other in zip(top, bottom, statistic.otherwise, strict=True)
    ]
    return statistic.scale * sum(parts)


def test_leaving_out_and_resampling_are_what_they_are_by_hand(monkeypatch):
    statistic = some_quotients()
    everyone = np.arange(12)
    assert statistic.value == pytest.approx(by_hand(statistic, everyone))
    np.testing.assert_allclose(
        statistic.leave_one_out(), [by_hand(statistic, np.delete(everyone, index)) for index in everyone]
    )
    drawn = np.random.default_rng(4).integers(12, size=(30, 12))
    expected = [by_hand(statistic, row) for row in drawn]
    np.testing.assert_allclose(statistic.resample(30, seed=4), expected)
    monkeypatch.setattr(intervals, "BLOCK", 60)
    monkeypatch.setattr(intervals, "KEPT", 0)
    np.testing.assert_allclose(statistic.resample(30, seed=4), expected)


def test_draws_that_are_kept_for_the_next_policy_are_those_it_would_have_made(monkeypatch):
    asked = [(12, 30, 4), (12, 30, 4), (12, 30, 5), (9, 30, 5), (9, 20, 5), (12, 30, 4)]

    def found() -> list[np.ndarray]:
        return [some_quotients(episodes=size).resample(count, seed=seed) for size, count, seed in asked]

    kept = found()
    monkeypatch.setattr(intervals, "KEPT", 0)
    for one, other in zip(kept, found(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["bca", "percentile"])
def test_bootstrap_intervals_of_a_mean_cover_it_about_as_often_as_they_say(kind):
    random = np.random.default_rng(0)
    covered = []
    for index in range(300):
        sample = random.exponential(size=(40, 1))
        statistic = Quotients(sample, np.ones((40, 1)), np.zeros(1))
        interval = bootstrap(statistic, resamples=300, seed=index, kind=kind)
        covered.append(interval.lower <= 1.0 <= interval.upper)
        assert interval.standard_error == pytest.approx(sample.std() / np.sqrt(40), rel=0.25)
    assert 0.87 < np.mean(covered) < 0.98


def test_the_corrected_interval_of_a_skewed_mean_leans_to_the_long_tail():
    sample = np.random.default_rng(3).exponential(size=(40, 1)) ** 2
    statistic = Quotients(sample, np.ones((40, 1)), np.zeros(1))
    plain, corrected = (
        bootstrap(statistic, resamples=2000, seed=0, kind=kind) for kind in ("percentile", "bca")
    )
    assert corrected.lower > plain.lower
    assert corrected.upper > plain.upper


def test_the_bernstein_interval_holds_and_narrows():
    system = graph()
    policy = system.targets["odd 0.8"]
    truth = system.value(policy, discount=0.98, horizon=4)
    widths = []
    for episodes in (100, 2000, 40_000):
        logged = system.sample(system.behaviour, episodes=episodes, seed=episodes)
        log_ratio = log_probs({"it": policy}, logged)["it"] - logged.log_prob
        weight = np.exp(cumulate(log_ratio, logged).whole)
        interval = bernstein(weight, logged.returns(0.98), bounds=(-4.0, 4.0))
        assert -4.0 <= interval.lower <= truth <= interval.upper <= 4.0
        widths.append(interval.upper - interval.lower)
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] < 0.8


def test_bounds_that_returns_leave_are_refused():
    with pytest.raises(InputError, match="returns lie between 7 and 10"):
        estimate("wis", RAGGED, POLICY, interval="bernstein", bounds=(0.0, 8.0))


@pytest.mark.parametrize("interval", ["bca", "percentile", "bernstein"])
def test_who_must_be_surer_gets_a_wider_interval_around_the_same_value(interval):
    system = graph()
    logged = system.sample(system.behaviour, episodes=1000, seed=0)
    evaluator = ImportanceSampling(kind="wis", interval=interval, bounds=(-4.0, 4.0)).fit(logged)
    found = [
        evaluator.evaluate(system.targets, discount=0.98, actions="sample", confidence=level)
        for level in (0.8, 0.95, 0.99)
    ]
    assert [estimates.confidence for estimates in found] == [0.8, 0.95, 0.99]
    for rows in zip(*found, strict=True):
        assert len({row.value for row in rows}) == 1
        widths = [row.upper - row.lower for row in rows]
        assert widths[0] < widths[1] < widths[2]


# Logs without what came of last steps


def final_rewards(**fields: Any) -> Episodes:
    """Thirty episodes of four steps that earn 10 or nothing at the end, and no column says they ended."""
    random = np.random.default_rng(0)
    return Episodes.from_arrays(
        random.normal(size=(120, 2)),
        np.arange(120) % 2,
        np.where(np.arange(120) % 4 == 3, 10.0 * (np.arange(120) % 8 == 3), 0.0),
        np.zeros(120, bool),
        np.arange(120) % 4 == 3,
        **fields,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_at_the_end_count_though_nothing_says_what_came_of_it(kind):
    row = estimate(kind, final_rewards(propensities=np.full(120, 0.5)), Table(0.5, 0.5))
    assert row.value == pytest.approx(5.0)
    assert row.lower < 5.0 < row.upper


def test_the_behaviour_is_cloned_from_last_steps_too():
    row = estimate("wis", final_rewards(), Table(0.5, 0.5), clone_steps=20)
    assert row.value == pytest.approx(5.0, abs=1.0)


@pytest.mark.parametrize("ends", [True, False])
def test_a_bandit_is_weighed_step_by_step(ends):
    action, reward = np.arange(40) % 2, np.where(np.arange(40) % 2, 3.0, 1.0)
    log = Episodes.from_arrays(
        np.zeros((40, 1)), action, reward, np.full(40, ends), np.ones(40, bool), propensities=np.full(40, 0.5)
    )
    for kind in KINDS:
        assert estimate(kind, log, Table(0.25, 0.75)).value == pytest.approx(0.25 * 1 + 0.75 * 3), kind
