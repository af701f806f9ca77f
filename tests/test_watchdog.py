"""The watchdog of tests/fuzzing.py sees what it is there for."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

from fuzzing import ROOM, fuzz, make_mutant
from vlbm.errors import InputError


def misbehave(path):
    """Every kind of answer, by the number of the mutant, which is the name of its folder."""
    match path.parent.name:
        case "1":
            raise InputError(f"{path}: is refused")
        case "2":
            ctypes.string_at(0)
        case "3":
            raise KeyError("x")
        case "4":
            time.sleep(60)
        case "5":
            return bytearray(2 * ROOM)
        case "6":
            raise InputError(f"{path}:\nis refused")
        case "7":
            print("printing disturbs nothing")
    return None


def test_every_way_to_fail_is_told_apart(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    outcomes = fuzz("test_watchdog:misbehave", tmp_path / "x", range(9), seconds=2)
    assert [outcome.number for outcome in outcomes] == list(range(9))
    kinds = [outcome.kind for outcome in outcomes]
    failing = ["crash", "traceback", "hang", "memory", "bad message"]
    assert kinds == ["loaded", "refused", *failing, "loaded", "loaded"]


def test_a_mutant_can_be_made_again_from_its_number(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(200)))

    def make(number: int, again: str) -> bytes:
        (tmp_path / f"{number}{again}").mkdir()
        mutant: Path = make_mutant(tmp_path / "x", tmp_path / f"{number}{again}", number)
        return mutant.read_bytes()

    first = [make(number, "a") for number in range(50)]
    assert first == [make(number, "b") for number in range(50)]
    assert len(set(first)) > 45
