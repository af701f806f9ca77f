"""Only regular files are opened, and sizes they declare are bounded."""

from __future__ import annotations

import os
import socket

import pytest

from vlbm import limits
from vlbm.errors import InputError


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(limits.MAX_BYTES_VARIABLE, raising=False)


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def link_to_fifo(path):
    os.mkfifo(path.with_name("behind"))
    path.symlink_to(path.with_name("behind"))


IRREGULAR = {
    "FIFO": make_fifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "a FIFO, not": link_to_fifo,
    "no such file": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("use", [limits.check_regular_file, limits.open_regular])
def test_what_is_no_file_is_refused_at_once(use, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    IRREGULAR[kind](tmp_path / "x")
    with pytest.raises(InputError, match=f"x: .*{kind}"):
        use(tmp_path / "x")


def test_a_file_that_becomes_a_fifo_after_the_check_is_refused_too(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "x")
    monkeypatch.setattr(limits, "check_regular_file", lambda path: None)
    with pytest.raises(InputError, match="is a FIFO"):
        limits.open_regular(tmp_path / "x")


def test_files_and_links_to_files_are_read(tmp_path):
    (tmp_path / "x").write_text("größer", encoding="utf-8")
    (tmp_path / "link").symlink_to("x")
    with limits.open_regular(tmp_path / "link", "r") as file:
        assert file.read() == "größer"
    with limits.open_regular(tmp_path / "x") as file:
        assert file.read() == "größer".encode()


def test_a_name_that_cannot_be_a_path_is_said_so():
    with pytest.raises(InputError, match="cannot be opened"):
        limits.check_regular_file("a\0b")


def test_links_may_not_lead_out_of_a_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x").write_text("")
    (folder / "good").symlink_to("x")
    (tmp_path / "secret").write_text("")
    (folder / "bad").symlink_to("../secret")
    limits.check_inside(folder, folder / "x")
    limits.check_inside(folder, folder / "good")
    for path in (folder / "bad", folder / "../secret", folder):
        with pytest.raises(InputError, match="leads out of the folder"):
            limits.check_inside(folder, path)


def test_the_limit_is_the_memory_or_what_the_environment_says(monkeypatch):
    assert limits.max_bytes() > 1 << 28
    monkeypatch.setenv(limits.MAX_BYTES_VARIABLE, "2e9")
    assert limits.max_bytes() == 2_000_000_000


@pytest.mark.parametrize("given", ["much", "-1", "0", "nan", "inf", "1e999"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(given, monkeypatch):
    monkeypatch.setenv(limits.MAX_BYTES_VARIABLE, given)
    with pytest.raises(InputError, match=f"VLBM_MAX_BYTES={given}: is no number of bytes"):
        limits.max_bytes()


def test_small_files_may_not_claim_much(monkeypatch):
    limits.check_claim("x", limits.HARMLESS_BYTES, file_bytes=100, what="field 'a'")
    limits.check_claim("x", 10**9, file_bytes=10**6, what="field 'a'")
    with pytest.raises(
        InputError, match=r"x: field 'a' would take 4.7 GiB in a file of 100 bytes.*5000000000"
    ):
        limits.check_claim("x", 5 * 10**9, file_bytes=100, what="field 'a'")
    # The remedy works.
    monkeypatch.setenv(limits.MAX_BYTES_VARIABLE, "5000000000")
    limits.check_claim("x", 5 * 10**9, file_bytes=100, what="field 'a'")


def test_nothing_may_claim_more_than_the_limit(monkeypatch):
    with pytest.raises(InputError, match="set VLBM_MAX_BYTES to at least"):
        limits.check_claim("x", 10**18, file_bytes=10**18, what="all fields")
    limits.check_claim("x", 10**15, file_bytes=10**15, what="all fields", limit=10**15)
    monkeypatch.setenv(limits.MAX_BYTES_VARIABLE, "1000")
    with pytest.raises(InputError, match="all fields would take 1,001 bytes"):
        limits.check_claim("x", 1001, file_bytes=10**9, what="all fields", limit=10**15)
