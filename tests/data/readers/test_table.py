"""Tables with one row for each step."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from vlbm.data.readers import load
from vlbm.errors import InputError

WRITERS = {"parquet": pa.parquet.write_table, "csv": pa.csv.write_csv}


@pytest.fixture
def columns(logged, fields):
    """The same episodes as columns."""
    return {
        "episode": logged.episode_of_step,
        "step": logged.time,
        **{f"obs_{i}": fields["observations"][:, i] for i in range(2)},
        **{f"action_{i}": fields["actions"][:, i] for i in range(3)},
        "reward": fields["rewards"],
        "terminated": fields["terminals"],
        "truncated": fields["timeouts"],
        "log_prob": fields["infos/action_log_probs"],
        **{f"next_obs_{i}": fields["next_observations"][:, i] for i in range(2)},
    }


@pytest.fixture
def write(tmp_path):
    def writer(columns, kind="parquet"):
        path = tmp_path / f"table.{kind}"
        WRITERS[kind](pa.table(columns), path)
        return path

    return writer


def renamed(columns, names):
    return {names.get(name, name): values for name, values in columns.items()}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_complete_table_gives_the_same_episodes(kind, write, columns, logged, assert_same):
    episodes = load(write(columns, kind))
    assert_same(episodes, logged)
    assert episodes.notes == ()


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_may_stand_in_any_order(kind, write, columns, logged, assert_same):
    order = np.random.default_rng(1).permutation(10)
    assert_same(load(write({name: values[order] for name, values in columns.items()}, kind)), logged)


def test_without_steps_the_order_of_the_file_counts_within_each_episode(write, columns, logged, assert_same):
    del columns["step"]
    interleaved = np.argsort(logged.time, kind="stable")
    assert_same(load(write({name: values[interleaved] for name, values in columns.items()})), logged)


@pytest.mark.parametrize("kind", WRITERS)
def test_episode_ids_may_be_words(kind, write, columns, logged, assert_same):
    words = np.array(["anna", "bert", "cleo", "dora"])
    columns["episode"] = words[columns["episode"]]
    order = np.random.default_rng(2).permutation(10)
    assert_same(load(write({name: values[order] for name, values in columns.items()}, kind)), logged)


def test_steps_may_be_times_of_the_clock(write, columns, logged, assert_same):
    start = datetime.datetime(2024, 1, 1)
    times = [start + datetime.timedelta(seconds=17 * int(step)) for step in columns["step"]]
    order = np.random.default_rng(3).permutation(10)
    columns = {name: values[order] for name, values in columns.items()}
    columns["step"] = pa.array([times[row] for row in order])
    episodes = load(write(columns))
    assert_same(episodes, logged)
    assert episodes.notes == ()


@pytest.mark.parametrize(
    "names",
    [
        {f"obs_{i}": f"state{i}" for i in range(2)} | {f"next_obs_{i}": f"next_state{i}" for i in range(2)},
        {
            "episode": "trajectory_id",
            "step": "t",
            "reward": "r",
            "terminated": "terminal",
            "truncated": "timeout",
        },
        {f"action_{i}": f"a[{i}]" for i in range(3)},
        {"obs_0": "obs.position", "obs_1": "obs.angle"},
        {"episode": "Episode", "reward": "Reward", "obs_0": "Obs_0", "obs_1": "Obs_1"},
    ],
)
@pytest.mark.parametrize("kind", WRITERS)
def test_the_usual_names_are_found(kind, names, write, columns, logged, assert_same):
    assert_same(load(write(renamed(columns, names), kind)), logged)


def test_numbered_columns_are_sorted_by_number(write, columns):
    wide = {f"obs_{i}": np.full(10, float(i)) for i in (10, 2, 0, 1, 9, 3, 4, 5, 6, 7, 8)}
    rest = {name: values for name, values in columns.items() if "obs" not in name}
    assert load(write(wide | rest)).observation[0].tolist() == [float(i) for i in range(11)]


def test_columns_can_be_named(write, columns, logged, assert_same):
    strange = {"obs_0": "tilt", "obs_1": "speed", "next_obs_0": "tilt'", "next_obs_1": "speed'"}
    strange |= {f"action_{i}": f"motor{i}" for i in range(3)} | {"reward": "score", "episode": "flight"}
    path = write(renamed(columns, strange))
    episodes = load(
        path,
        observation=["tilt", "speed"],
        next_observation=["tilt'", "speed'"],
        action="motor",
        reward="score",
        episode="flight",
    )
    assert_same(episodes, logged)


def test_parquet_lists_are_vectors(write, columns, fields, logged, assert_same):
    kept = {name: values for name, values in columns.items() if "obs_" not in name and "action_" not in name}
    kept["observation"] = list(fields["observations"])
    kept["next_observation"] = pa.FixedSizeListArray.from_arrays(fields["next_observations"].reshape(-1), 2)
    kept["action"] = list(fields["actions"])
    assert_same(load(write(kept)), logged)


@pytest.mark.parametrize("kind", WRITERS)
def test_one_column_of_whole_numbers_is_discrete(kind, write, columns):
    ids = np.arange(10) % 4
    kept = {name: values for name, values in columns.items() if "action" not in name} | {"action": ids}
    path = write(kept, kind)
    episodes = load(path)
    assert episodes.n_actions == 4
    assert episodes.action.tolist() == ids.tolist()
    assert load(path, n_actions=9).n_actions == 9
    vectors = load(path, action=["action"])
    assert vectors.n_actions is None
    assert vectors.action.tolist() == [[float(i)] for i in ids]


def test_without_next_observations_every_step_stays(write, columns, logged):
    kept = {name: values for name, values in columns.items() if "next" not in name}
    episodes = load(write(kept))
    assert episodes.length.tolist() == [3, 1, 4, 2]
    np.testing.assert_array_equal(episodes.reward, logged.reward)
    assert episodes.known_length.tolist() == [3, 1, 3, 1]
    assert all(note.startswith("no next observations") for note in episodes.notes)


def test_propensities_become_log_probabilities(write, columns):
    chances = np.linspace(0.1, 1, 10)
    episodes = load(write(renamed(columns, {"log_prob": "propensity"}) | {"propensity": chances}))
    np.testing.assert_allclose(episodes.log_prob, np.log(chances), rtol=1e-6)
    del columns["log_prob"]
    named = load(write(columns | {"chance": chances}), propensity="chance")
    np.testing.assert_array_equal(named.log_prob, episodes.log_prob)


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1.5])
def test_a_propensity_that_is_no_probability_of_something_done_is_refused(wrong, write, columns):
    del columns["log_prob"]
    chances = np.full(10, 0.5)
    chances[3] = wrong
    with pytest.raises(InputError, match=rf"'propensities' holds {wrong:g} in row 3 .* lies above 0"):
        load(write(columns | {"propensity": chances}))


def test_log_probabilities_and_propensities_exclude_each_other(write, columns):
    path = write(columns | {"propensity": np.full(10, 0.5)})
    with pytest.raises(InputError, match="log-probabilities in 'log_prob' and probabilities in 'propensity'"):
        load(path)
    np.testing.assert_array_equal(load(path, propensity="").log_prob, columns["log_prob"])


def of_ids(columns, **more):
    return {name: values for name, values in columns.items() if "action" not in name} | {
        "action": np.arange(10) % 3,
        **more,
    }


def test_probabilities_of_ids_in_the_place_of_log_probabilities_are_refused(write, columns):
    path = write(of_ids(columns, log_prob=np.linspace(0.1, 1, 10)))
    with pytest.raises(InputError, match=r"lies in \(0, 1\] everywhere, .*--column propensity=NAME"):
        load(path)
    assert load(path, log_prob="", propensity="log_prob").log_prob.max() == 0


def test_probabilities_of_vectors_in_the_place_of_log_probabilities_are_hinted_at(write, columns):
    (note,) = load(write(columns | {"log_prob": np.linspace(0.1, 1, 10)})).notes
    assert note.startswith("every log-probability lies in (0, 1]")


@pytest.mark.parametrize("kind", WRITERS)
def test_ids_stored_as_decimals_are_hinted_at(kind, write, columns):
    kept = {name: values for name, values in columns.items() if "action" not in name}
    path = write(kept | {"action": pa.array(np.arange(10.0) % 3)}, kind)
    vectors, ids = load(path, action=["action"]), load(path, n_actions=3)
    assert ids.notes == ()
    assert ids.action.tolist() == [i % 3 for i in range(10)]
    assert vectors.n_actions is None
    assert vectors.notes[0].startswith("actions are whole numbers (0, 1, 2) stored as decimals")
    assert vectors.notes[0].endswith("--n-actions 3")


def test_amounts_of_one_number_are_not_taken_for_ids(write, columns):
    kept = {name: values for name, values in columns.items() if "action" not in name}
    for amounts in (np.linspace(0, 1, 10), np.arange(10.0) - 1, np.zeros(10)):
        assert load(write(kept | {"action": amounts})).notes == ()


def test_which_columns_became_what_is_kept_with_their_names(write, columns):
    episodes = load(write(columns | {"comment": np.zeros(10)}))
    assert episodes.columns["observation"] == ("obs_0", "obs_1")
    assert episodes.columns["reward"] == ("reward",)
    assert episodes.columns["unused"] == ("comment",)
    assert episodes.observation_names == ("obs_0", "obs_1")
    assert episodes.action_names == ("action_0", "action_1", "action_2")
    assert load(write(of_ids(columns))).action_names is None


def test_a_list_of_numbers_has_no_names(write, columns, fields):
    kept = {name: values for name, values in columns.items() if "obs_" not in name}
    episodes = load(write(kept | {"obs": list(fields["observations"])}))
    assert episodes.observation_names is None
    assert episodes.columns["observation"] == ("obs",)


def test_a_bandit_needs_neither_episodes_nor_what_follows(write):
    rows = {"obs": [0.1, 0.2, 0.3], "action": [0, 1, 0], "reward": [1.0, 0.0, 2.0], "done": [1, 1, 1]}
    episodes = load(write(rows | {"propensity": [0.5, 0.5, 0.25]}))
    assert (episodes.count, episodes.steps) == (3, 3)
    assert episodes.outcome_known.all()
    np.testing.assert_allclose(np.exp(episodes.log_prob), [0.5, 0.5, 0.25], rtol=1e-6)
    numbered = load(write(rows | {"episode": [7, 8, 9], "done": [0, 0, 0]}))
    assert numbered.returns().tolist() == [1, 0, 2]


def test_without_an_episode_column_ends_divide_the_rows(write, columns, logged, assert_same):
    del columns["episode"], columns["step"]
    episodes = load(write(columns))
    assert_same(episodes, logged)
    assert episodes.notes == (
        "no episode column: rows are read in order, and episodes end by 'terminated' and 'truncated'",
    )


def test_without_an_episode_column_falling_step_numbers_divide_the_rows(write, columns, logged, assert_same):
    del columns["episode"], columns["truncated"]
    assert_same(load(write(columns)), logged)


def test_without_flags_every_episode_is_cut_off_and_noted(write, columns, logged):
    del columns["terminated"], columns["truncated"]
    episodes = load(write(columns))
    assert episodes.terminated.tolist() == [False] * 4
    assert episodes.length.tolist() == logged.length.tolist()
    assert episodes.notes == (
        "no column says which episodes terminated: all are read as cut off by a time limit",
    )


def test_done_alone_is_noted_as_termination(write, columns):
    del columns["truncated"]
    episodes = load(write(renamed(columns, {"terminated": "done"})))
    assert episodes.terminated.tolist() == [True, True, False, False]
    assert episodes.notes == ("'done' is read as termination, not as a time limit",)


def test_left_out_step_numbers_are_noted(write, columns):
    columns["step"] = columns["step"] * 2
    episodes = load(write(columns))
    assert episodes.notes == ("'step' leaves out numbers in 6 places: steps are read as consecutive",)


def test_an_empty_name_says_that_there_is_no_such_column(write, columns):
    columns["log_prob"][:] = np.nan
    path = write(columns)
    with pytest.raises(InputError, match="'log_prob' holds nan"):
        load(path)
    assert load(path, log_prob="").log_prob is None


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_blanks_and_byte_order_marks_do_not_matter(
    delimiter, tmp_path, columns, logged, assert_same
):
    lines = [f" {delimiter} ".join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(delimiter.join(str(cell) for cell in row))
    (tmp_path / "table.txt").write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    assert_same(load(tmp_path / "table.txt"), logged)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {"reward": None},
            {},
            r"no column looks like the reward \(reward, rewards, rew, r\); .* Say which with reward=",
        ),
        ({"obs_0": None, "obs_1": None}, {}, "no column looks like the observation"),
        ({}, {"reward": ["reward", "step"]}, "reward is one column, but reward, step were named for it"),
        (
            {},
            {"observation": ["obs_0", "obs_0"]},
            "obs_0, obs_0 were named for observation, one of them twice",
        ),
        (
            {},
            {"reward": "score"},
            "has no column 'score' for reward: name one; the columns are: episode, step, obs_0",
        ),
        ({}, {"observation": ["obs_0", "obs_7"]}, "has no column 'obs_7' for observation"),
        ({"next_obs_1": None}, {}, "'next_observations' has 1 numbers in each row, but 'observations' has 2"),
        ({"obs_1": np.array(["x"] * 10)}, {}, "column 'obs_1' has type string and holds 'x' in row 0"),
        ({"obs_1": pa.array([None] + [1.0] * 9)}, {}, r"column 'obs_1' has no value \(or NaN\) in row 0"),
        ({"reward": pa.array([1.0] * 9 + [None])}, {}, r"column 'reward' has no value \(or NaN\) in row 9"),
        ({"reward": np.array([1e300] * 10)}, {}, r"field 'reward' holds 1e\+300 in row 0"),
        ({"terminated": np.full(10, 2)}, {}, "field 'terminated' holds 2 in row 0 .* must be 0 or 1"),
        ({"step": np.zeros(10, int)}, {}, r"episode 0 has step 0 twice \(rows 0 and 1"),
        ({"terminated": np.ones(10, bool)}, {}, "episode 0 goes on after its end in row 0"),
        ({"action": np.arange(10) - 1}, {}, "field 'action' holds -1 in row 0 .* whole numbers from 0 up"),
        (
            {"action": np.arange(10)},
            {"n_actions": 4},
            r"'action' holds 4 in row 4 .* from 0 to 3 \(n_actions=4\)",
        ),
        ({}, {"n_actions": 4}, "has 3 numbers in each row, but n_actions=4 asks for discrete actions"),
        ({}, {"colour": "red"}, "there is no option 'colour'"),
        ({}, {"n_actions": 0}, "n_actions=0 leaves no action"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(kind, change, options, message, write, columns):
    changed = {name: values for name, values in (columns | change).items() if values is not None}
    path = write(changed, kind)
    with pytest.raises(InputError, match=message) as caught:
        load(path, **options)
    assert str(caught.value).startswith(f"{path}: ")


def test_lists_of_unequal_length_are_refused(write, columns):
    kept = {name: values for name, values in columns.items() if "obs" not in name}
    with pytest.raises(InputError, match="column 'obs' has a list of 1 numbers in row 3"):
        load(write(kept | {"obs": [[1.0, 2.0]] * 3 + [[1.0]] * 7}))


def test_a_torn_parquet_file_is_refused(write, columns):
    path = write(columns)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load(path)


def test_a_row_with_too_few_cells_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("obs,action,reward\n1,2,3\n1,2\n")
    with pytest.raises(InputError, match=r"cannot be read as CSV .*Expected 3 columns, got 2"):
        load(tmp_path / "table.csv")


def test_two_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "table.csv").write_text("obs,action,reward,reward\n1,2,3,4\n1,2,3,4\n")
    with pytest.raises(InputError, match="two columns named 'reward'"):
        load(tmp_path / "table.csv")


def test_a_header_alone_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("obs,action,reward\n")
    with pytest.raises(InputError, match="has no steps"):
        load(tmp_path / "table.csv")
