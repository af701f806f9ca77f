"""Files appear whole or not at all; what is no file is written through."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vlbm.errors import OutputError
from vlbm.writing import is_standard_output, sweep, unfinished_folder, write_atomically, write_text


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "old")

    def interrupted(temporary: Path) -> None:
        temporary.write_text("new")
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, interrupted)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_written_file_replaces_the_old_one(tmp_path):
    path = tmp_path / "new" / "page.html"
    write_text(path, "old")
    with path.open() as reader:
        write_text(path, "größer")
        assert reader.read() == "old"  # moved into place, not written over: no one sees half a file
    assert path.read_text(encoding="utf-8") == "größer"
    assert os.listdir(path.parent) == ["page.html"]


def test_written_files_are_as_readable_as_the_user_wants_files_to_be(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "page.html", "text")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o640


def test_a_hyphen_is_standard_output(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    write_text(Path("-"), "größer")
    write_atomically(Path("-"), lambda temporary: temporary.write_bytes(b"\x00\xff"))
    assert capfdbinary.readouterr().out == "größer".encode() + b"\x00\xff"
    assert os.listdir(tmp_path) == []


WRITES = (
    "import sys; from pathlib import Path; from vlbm.writing import write_text; "
    "print('before'); write_text(Path(sys.argv[1]), 'text'); print('after')"
)


def python(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", *map(str, arguments)], check=True, text=True, **options)


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"])
def test_the_name_of_standard_output_writes_to_it_in_order_whether_pipe_or_file(tmp_path, place):
    if place != "-" and not os.path.exists(place):
        pytest.skip("this system has no such name")
    assert python(WRITES, place, capture_output=True, cwd=tmp_path).stdout == "before\ntextafter\n"
    with (tmp_path / "out.txt").open("w") as file:
        python(WRITES, place, stdout=file, cwd=tmp_path)
    assert (tmp_path / "out.txt").read_text() == "before\ntextafter\n"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_link_to_a_device_is_written_through_and_stays(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    write_text(tmp_path / "link", "text")
    write_atomically(tmp_path / "link", lambda temporary: temporary.write_text("text"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").is_char_device()
    assert os.listdir(tmp_path) == ["link"]


def test_a_fifo_is_written_through(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "text")
    reader.join()
    assert read == ["text"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "page.html").write_text("old")
    (tmp_path / "link.html").symlink_to(Path("far", "page.html"))
    with (tmp_path / "link.html").open() as reader:
        write_text(tmp_path / "link.html", "new")
        assert reader.read() == "old"
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "far" / "page.html").read_text() == "new"
    assert os.listdir(tmp_path / "far") == ["page.html"]


def test_a_link_to_nothing_yet_is_filled(tmp_path):
    (tmp_path / "link.html").symlink_to(tmp_path / "far" / "page.html")
    write_text(tmp_path / "link.html", "new")
    assert (tmp_path / "far" / "page.html").read_text() == "new"


def test_an_ordinary_file_is_not_standard_output(tmp_path):
    (tmp_path / "file").touch()
    assert not is_standard_output(tmp_path / "file")
    assert not is_standard_output(tmp_path / "nowhere")


HANGS = """
import os, sys
from pathlib import Path
from vlbm.writing import unfinished_folder, write_atomically

def hang(temporary):
    (temporary / "part" if temporary.is_dir() else temporary).write_text("half")
    print("writing", flush=True)
    sys.stdin.read()

if sys.argv[2] == "file":
    write_atomically(Path(sys.argv[1]), hang)
else:
    with unfinished_folder(Path(sys.argv[1])) as folder:
        hang(folder)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_write_leaves_is_swept_and_what_another_is_writing_stays(tmp_path, kind):
    target = tmp_path / "page.html"
    with subprocess.Popen(
        [sys.executable, "-c", HANGS, target, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        sweep(tmp_path)
        write_text(target, "mine")
        assert len(os.listdir(tmp_path)) == 2
        process.kill()
    assert len(os.listdir(tmp_path)) == 2
    sweep(tmp_path, "other.html")
    assert len(os.listdir(tmp_path)) == 2
    if kind == "file":
        write_text(target, "mine again")
    else:
        sweep(tmp_path)
    assert os.listdir(tmp_path) == ["page.html"]


def test_only_our_own_names_are_swept(tmp_path):
    names = [".page.html.tmp", ".vlbm-unfinished", "page.vlbm-unfinished", ".page.vlbm-unfinished"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "kept").touch()
    (tmp_path / ".page.abc.vlbm-unfinished.html").symlink_to(tmp_path / "kept")
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*names, ".page.abc.vlbm-unfinished.html", "kept"])


def test_a_folder_that_fails_leaves_nothing(tmp_path):

    def fail() -> None:
        with unfinished_folder(tmp_path / "pack") as folder:
            (folder / "part").touch()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def little_room():
    """No file may grow beyond a few bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_does_not_fit_is_one_error_that_names_the_file_and_leaves_nothing(tmp_path, little_room):
    target = tmp_path / "large.json"
    with pytest.raises(OutputError, match=r"large\.json: cannot be written \(File too large\); make room"):
        write_text(target, "x" * 1000)
    with (
        pytest.raises(OutputError, match=r"folder: cannot be written"),
        unfinished_folder(tmp_path / "folder") as unfinished,
    ):
        (unfinished / "large").write_bytes(bytes(1000))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_that_takes_nothing_is_named():
    with pytest.raises(OutputError, match="/dev/full: cannot be written"):
        write_text(Path("/dev/full"), "x")
