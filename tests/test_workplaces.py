"""Work side by side: who has a device when, and what stops everybody."""

from __future__ import annotations

import time
from threading import Lock

import jax
import pytest

from vlbm import workplaces
from vlbm.errors import TrainingDivergedError
from vlbm.workplaces import Workplace, side_by_side


@pytest.fixture
def two_devices(monkeypatch):
    """The one device there is, lent twice."""
    device = jax.devices()[0]
    monkeypatch.setattr(workplaces.jax, "local_devices", lambda: [device, device])


class Crew:
    """Pieces of work of five stretches each; remembers how many were at work at once."""

    def __init__(self):
        self.at_work, self.most, self.lock = 0, 0, Lock()

    def job(self, name: str, *, fails_at: int | None = None):
        def work(place: Workplace) -> tuple[str, int]:
            stretches = 0
            try:
                for stretch in range(5):
                    with place.turn():
                        if stretch == fails_at:
                            raise TrainingDivergedError(f"{name} diverged")
                        with self.lock:
                            self.at_work += 1
                            self.most = max(self.most, self.at_work)
                        time.sleep(0.01)
                        with self.lock:
                            self.at_work -= 1
                        stretches += 1
            except KeyboardInterrupt:
                place.stop()
            return name, stretches

        return work


def test_three_pieces_keep_two_devices_busy_and_come_back_in_order(two_devices):
    crew = Crew()
    results = side_by_side([crew.job(name) for name in "abc"], batch=1)
    assert results == [("a", 5), ("b", 5), ("c", 5)]
    assert crew.most == 2


def test_with_one_device_one_piece_comes_after_the_other(monkeypatch):
    monkeypatch.setattr(workplaces.jax, "local_devices", lambda: jax.devices()[:1])
    crew = Crew()
    assert side_by_side([crew.job(name) for name in "ab"], batch=1) == [("a", 5), ("b", 5)]
    assert crew.most == 1


def pressed(place: Workplace) -> tuple[str, int]:
    with place.turn():
        place.stop()
    return "pressed", 1


def test_an_interruption_heard_by_one_stops_all(two_devices):
    results = side_by_side([pressed, Crew().job("long")], batch=1)
    assert results[0] == ("pressed", 1)
    assert results[1][1] < 5


def test_after_an_interruption_nothing_else_is_begun(monkeypatch):
    monkeypatch.setattr(workplaces.jax, "local_devices", lambda: jax.devices()[:1])
    assert side_by_side([pressed, Crew().job("never")], batch=1) == [("pressed", 1)]


def test_ctrl_c_in_the_main_thread_stops_all_and_keeps_what_they_have(two_devices, monkeypatch):
    def interrupted(futures, **options):
        time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(workplaces, "wait", interrupted)
    results = side_by_side([Crew().job(name) for name in "ab"], batch=1)
    assert [name for name, _ in results] == ["a", "b"]
    assert all(stretches < 5 for _, stretches in results)


def test_a_failure_is_raised_and_stops_the_others(two_devices):
    crew, slow = Crew(), []

    def patient(place: Workplace) -> None:
        try:
            for _ in range(100):
                with place.turn():
                    time.sleep(0.01)
                    slow.append(1)
        except KeyboardInterrupt:
            return

    with pytest.raises(TrainingDivergedError, match="it diverged"):
        side_by_side([crew.job("it", fails_at=2), patient], batch=1)
    assert len(slow) < 100
