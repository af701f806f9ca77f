"""Downloads arrive whole or not at all, and what was downloaded once is recognised ever after."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from dope_files import write_d4rl, write_policies

from vlbm.errors import InputError
from vlbm.suites import dope
from vlbm.suites.dope import catalogue
from vlbm.suites.dope.download import fetch

pytest.importorskip("pooch")


@dataclass
class Server:
    """A web server of this machine that gives what it is told to."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    short: bool = False  # breaks off in the middle
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            content = state.files.get(self.path)
            self.send_response(404 if content is None else 200)
            content = content or b"not found"
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if state.short else content)

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{running.server_port}"
    threading.Thread(target=partial(running.serve_forever, 0.02), daemon=True).start()
    yield state
    running.shutdown()
    running.server_close()


@pytest.fixture
def cache(monkeypatch, tmp_path, server) -> Path:
    """Where downloads go; the publishers' addresses lead to our server."""
    monkeypatch.delenv("VLBM_DOPE", raising=False)
    monkeypatch.setenv("VLBM_CACHE", str(tmp_path / "cache"))
    facts = {**catalogue._read_facts(), "addresses": {"data": server.address, "policies": server.address}}
    monkeypatch.setattr(catalogue, "_read_facts", lambda: facts)
    catalogue.find_problem.cache_clear()
    yield tmp_path / "cache" / "dope"
    catalogue.find_problem.cache_clear()


def publish(server: Server, tmp_path: Path) -> None:
    """The files of hopper-medium."""
    data = write_d4rl(tmp_path / "published.hdf5", observations=11, actions=3)
    server.files["/gym_mujoco_v2/hopper_medium-v2.hdf5"] = data.read_bytes()
    for path in write_policies(tmp_path / "published", "hopper").rglob("*.pkl"):
        server.files[f"/hopper/{path.name}"] = path.read_bytes()


def anything(path: Path) -> None:
    assert path.stat().st_size > 0


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []


def test_a_task_is_downloaded_once_and_recognised_afterwards(server, cache, tmp_path):
    publish(server, tmp_path)
    assert not dope.make_entry("dope/hopper-medium").available
    task = dope.load_task("dope/hopper-medium", download=True)
    assert (task.episodes.steps, len(task.policies), len(server.asked)) == (12, 11, 12)
    data = cache / "data" / "hopper_medium-v2.hdf5"
    record = f"{hashlib.sha256(data.read_bytes()).hexdigest()}  hopper_medium-v2.hdf5\n"
    assert (cache / "data" / "hopper_medium-v2.hdf5.sha256").read_text() == record
    assert dope.make_entry("dope/hopper-medium").available
    assert dope.load_task("dope/hopper-medium").episodes.fingerprint() == task.episodes.fingerprint()
    dope.load_task("dope/hopper-medium", download=True)
    assert len(server.asked) == 12


def test_a_damaged_download_is_detected_and_fetched_again_on_demand(server, cache, tmp_path):
    publish(server, tmp_path)
    dope.load_task("dope/hopper-medium", download=True)
    data = cache / "data" / "hopper_medium-v2.hdf5"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    with pytest.raises(InputError, match=r"hopper_medium-v2.hdf5: is damaged .* download=True"):
        dope.load_task("dope/hopper-medium")
    dope.load_task("dope/hopper-medium", download=True)
    assert data.read_bytes() == server.files["/gym_mujoco_v2/hopper_medium-v2.hdf5"]


def test_a_file_that_its_publisher_has_changed_is_not_taken_silently(server, cache, tmp_path):
    target = cache / "some.file"
    server.files["/some.file"] = b"first"
    fetch(f"{server.address}/some.file", target, readable=anything)
    server.files["/some.file"] = b"second"
    assert fetch(f"{server.address}/some.file", target, readable=anything).read_bytes() == b"first"
    target.unlink()
    with pytest.raises(InputError, match=r"is not what was first downloaded .* delete .*some.file.sha256"):
        fetch(f"{server.address}/some.file", target, readable=anything)
    assert left_in(cache) == ["some.file.sha256"]
    (cache / "some.file.sha256").unlink()
    assert fetch(f"{server.address}/some.file", target, readable=anything).read_bytes() == b"second"


def test_a_connection_that_breaks_off_leaves_nothing(server, cache, tmp_path):
    publish(server, tmp_path)
    server.short = True
    with pytest.raises(InputError, match=r"hopper_medium-v2.hdf5: cannot be downloaded .* VLBM_DOPE"):
        dope.load_task("dope/hopper-medium", download=True)
    assert left_in(cache) == []
    server.short = False
    assert dope.load_task("dope/hopper-medium", download=True).episodes.steps == 12


def test_an_interrupted_download_leaves_nothing(server, cache):
    server.files["/some.file"] = b"content"

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(f"{server.address}/some.file", cache / "some.file", readable=interrupt)
    assert left_in(cache) == []


def test_a_file_without_a_record_is_not_taken_for_a_whole_download(server, cache, tmp_path):
    publish(server, tmp_path)
    data = write_d4rl(cache / "data" / "hopper_medium-v2.hdf5", observations=11, actions=3)
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(InputError, match="is not in"):
        dope.load_task("dope/hopper-medium")
    assert dope.load_task("dope/hopper-medium", download=True).episodes.steps == 12


def test_a_web_page_in_the_place_of_data_is_not_kept(server, cache, tmp_path):
    publish(server, tmp_path)
    server.files["/gym_mujoco_v2/hopper_medium-v2.hdf5"] = b"<html>We have moved.</html>"
    with pytest.raises(InputError, match="what was downloaded is no HDF5 file"):
        dope.load_task("dope/hopper-medium", download=True)
    assert left_in(cache) == []


def test_a_file_that_is_not_there_says_what_else_can_be_done(server, cache):
    with pytest.raises(InputError, match=r"hopper_medium-v2.hdf5: cannot be downloaded \(404 .* VLBM_DOPE"):
        dope.load_task("dope/hopper-medium", download=True)
    assert left_in(cache) == []


def test_what_the_user_has_is_not_downloaded(server, cache, tmp_path):
    mine = write_policies(tmp_path / "mine", "hopper")
    write_d4rl(mine / "data" / "hopper_medium-v2.hdf5", observations=11, actions=3)
    dope.load_task("dope/hopper-medium", data=mine, download=True)
    assert server.asked == []


def test_progress_is_told_in_bytes(server, cache):
    from contextlib import contextmanager

    from vlbm.progress import Progress

    told: list[tuple[str, int]] = []

    class Telling(Progress):
        @contextmanager
        def task(self, *, total, done=0, title=""):
            told.append((title, total))
            yield lambda done, terms: told.append(("done", done))

    server.files["/some.file"] = bytes(5000)
    download = partial(fetch, f"{server.address}/some.file", cache / "some.file", readable=anything)
    download(progress=Telling())
    assert told[0] == ("some.file", 5000)
    assert told[-1] == ("done", 5000)
