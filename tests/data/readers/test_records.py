"""JSON with one record for each step, and text that gzip has compressed."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from vlbm.data.readers import is_data, load
from vlbm.errors import InputError


@pytest.fixture
def records(logged, fields):
    return [
        {
            "episode": int(episode),
            "obs": {"tilt": float(tilt), "speed": float(speed)},
            "next_obs": {"tilt": float(following[0]), "speed": float(following[1])},
            "action": [float(number) for number in action],
            "reward": float(reward),
            "terminated": bool(terminal),
            "log_prob": float(log_prob),
        }
        for episode, (tilt, speed), following, action, reward, terminal, log_prob in zip(
            logged.episode_of_step,
            fields["observations"],
            fields["next_observations"],
            fields["actions"],
            fields["rewards"],
            fields["terminals"],
            fields["infos/action_log_probs"],
            strict=True,
        )
    ]


def lines(records) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def pack(text: str) -> bytes:
    return gzip.compress(text.encode())


LAYOUTS = {
    "lines.jsonl": lambda records: lines(records).encode(),
    "list.json": lambda records: json.dumps(records, indent=1).encode(),
    "marked.jsonl": lambda records: b"\xef\xbb\xbf\n" + lines(records).encode(),
    "lines.jsonl.gz": lambda records: pack(lines(records)),
    "list.json.gz": lambda records: pack(json.dumps(records)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_records_give_the_same_episodes(name, tmp_path, records, logged, assert_same, monkeypatch):
    monkeypatch.setattr("vlbm.data.readers.records.AT_ONCE", 4)
    path = tmp_path / name
    path.write_bytes(LAYOUTS[name](records))
    assert is_data(path)
    episodes = load(path)
    assert_same(episodes, logged)
    assert episodes.observation_names == ("obs.tilt", "obs.speed")


def test_whole_numbers_may_turn_into_others_further_down(tmp_path, records, monkeypatch):
    monkeypatch.setattr("vlbm.data.readers.records.AT_ONCE", 4)
    for row, record in enumerate(records):
        record["reward"] = row if row < 5 else row + 0.5
    (tmp_path / "log.jsonl").write_text(lines(records))
    assert load(tmp_path / "log.jsonl").reward.tolist() == [0, 1, 2, 3, 4, 5.5, 6.5, 7.5, 8.5, 9.5]


def test_a_long_first_record_is_data_too(tmp_path, records):
    records[0]["comment"] = "x" * 10_000
    for text in (lines(records), json.dumps(records)):
        (tmp_path / "log.json").write_text(text)
        assert is_data(tmp_path / "log.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"obs": 1, "action": 1, "reward": 1}\n{"obs": 1,\n', "cannot be read as JSON"),
        ('{"obs": 1, "action": 1, "reward": 1}\n[1, 2]\n', r"has \[1, 2\] in row 1 .* which is no record"),
        ('[{"obs": 1, "action": 1, "reward": 1}, 5]', "has 5 in row 1"),
        ('[{"obs": 1, "action": 1, "reward": 1}', "cannot be read as JSON"),
        ('{"obs": 1, "action": 1, "reward": null}\n', "'reward' has no value"),
        (
            '{"obs": 1, "action": 1, "reward": 1}\n{"obs": 1, "action": 1}\n',
            r"'reward' has no value \(or NaN\) in row 1",
        ),
        ('{"obs": 1, "action": 1, "reward": NaN}\n', "'reward' holds nan in row 0"),
        ('{"obs": 1, "action": 1, "reward": 1' + "0" * 400 + "}\n", "cannot be read as JSON|is not a finite"),
        ('{"obs": ' + "[" * 20 + "]" * 20 + ', "action": 1, "reward": 1}\n', "nests deeper than 4 levels"),
        ('{"obs": ' + "[" * 100_000 + "\n", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "no column looks like the observation|has no steps"),
    ],
)
def test_records_that_cannot_be_read_say_why(text, message, tmp_path):
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load(tmp_path / "log.jsonl")
    assert str(caught.value).startswith(f"{tmp_path / 'log.jsonl'}: ")


def test_a_compressed_csv_file_is_read_as_it_is(tmp_path):
    table = pa.table({"obs": [1.0, 2.0], "action": [0.5, 0.25], "reward": [1.0, 2.0], "done": [0, 1]})
    pa.csv.write_csv(table, tmp_path / "log.csv")
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress((tmp_path / "log.csv").read_bytes()))
    assert is_data(tmp_path / "log.csv.gz")
    packed, plain = load(tmp_path / "log.csv.gz"), load(tmp_path / "log.csv")
    assert packed.fingerprint() == plain.fingerprint()
    assert packed.notes == plain.notes


def test_a_compressed_file_does_not_unpack_to_more_than_is_allowed(tmp_path, monkeypatch):
    rows = "0.5,1,1\n" * 2_000_000
    (tmp_path / "bomb.csv.gz").write_bytes(pack("obs,action,reward\n" + rows))
    monkeypatch.setenv("VLBM_MAX_BYTES", "1e6")
    with pytest.raises(InputError, match=r"bomb.csv.gz: its text, unpacked, .* set VLBM_MAX_BYTES"):
        load(tmp_path / "bomb.csv.gz")


@pytest.mark.parametrize("cut", [5, 40])
def test_a_torn_compressed_file_is_refused(cut, tmp_path, records):
    (tmp_path / "log.jsonl.gz").write_bytes(pack(lines(records))[:-cut])
    with pytest.raises(InputError, match=r"log\.jsonl\.gz: "):
        load(tmp_path / "log.jsonl.gz")


def test_numbers_keep_their_precision(tmp_path):
    numbers = np.random.default_rng(0).normal(size=50).astype(np.float32)
    rows = [{"obs": float(number), "action": 0.5, "reward": float(number)} for number in numbers]
    (tmp_path / "log.jsonl").write_text(lines(rows))
    np.testing.assert_array_equal(load(tmp_path / "log.jsonl").reward, numbers)
