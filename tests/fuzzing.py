"""Mutants of small valid files, each loaded under a watchdog: it loads, or is refused with an InputError.

A mutant is made from its number alone, so that one that fails can be made again:
`make_mutant(source, folder, 17)`.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import os
import random
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOM = 3 << 30  # bytes of address space beyond what imports take
INTEGERS = (
    0,
    1,
    2,
    3,
    -1,
    -2,
    255,
    65_535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    10**9,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
)
VALUES = (
    None,
    True,
    False,
    "",
    "x",
    "../x",
    "/dev/zero",
    [],
    {},
    [1],
    {"a": 1},
    -1.5,
    1e308,
    float("nan"),
    *INTEGERS,
)


class Outcome(NamedTuple):
    """What became of a mutant: loaded, refused, or else a failure (traceback, crash, hang, memory)."""

    number: int
    kind: str
    detail: str = ""


def fuzz(loader: str, source: Path, numbers: Iterable[int], *, seconds: float = 20.0) -> list[Outcome]:
    """The outcomes of `module:function`, called in other processes with the path of each mutant.

    The module may stand beside this one. The source is a file or a folder; each mutant has its name.
    """
    waiting, outcomes = list(numbers), []
    while waiting:
        done = _run_batch(loader, source, waiting, seconds)
        outcomes += done
        waiting = waiting[len(done) :]
    return outcomes


def count(outcomes: Iterable[Outcome]) -> dict[str, int]:
    return dict(Counter(outcome.kind for outcome in outcomes))


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.kind not in ("loaded", "refused")]


def make_mutant(source: Path, folder: Path, number: int) -> Path:
    """A copy of the source in the folder, changed in one to three places."""
    chance = random.Random(f"{source.name} {number}")
    target = folder / source.name
    if source.is_dir():
        shutil.copytree(source, target)
        chosen = chance.choice(sorted(path for path in target.rglob("*") if path.is_file()))
        if chance.random() < 0.03:
            chosen.unlink()
            return target
    else:
        shutil.copyfile(source, target)
        chosen = target
    content = chosen.read_bytes()
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = mutate(content, chance)
    chosen.write_bytes(content)
    return target


def mutate(content: bytes, chance: random.Random) -> bytes:
    """One change: to raw bytes, or to what the container holds so that its checksums still fit."""
    if chance.random() < 0.5:
        for edit in (_edit_gzip, _edit_zip, _edit_npy, _edit_safetensors, _edit_json, _edit_records):
            edited = edit(content, chance)
            if edited is not None:
                return edited
    return _edit_bytes(content, chance)


def _edit_bytes(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return bytes(chance.randrange(256) for _ in range(8))
    # Headers are small and matter more than their size.
    end = len(content) if chance.random() < 0.6 else min(len(content), 256)
    place = chance.randrange(end)
    match chance.randrange(9):
        case 0:  # flip a bit
            return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
        case 1:  # another byte
            return content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :]
        case 2:  # truncate
            return content[:place]
        case 3:  # cut out
            return content[:place] + content[place + chance.randrange(1, 64) :]
        case 4:  # splice in another part of the file
            begin = chance.randrange(len(content))
            return content[:place] + content[begin : begin + chance.randrange(1, 64)] + content[place:]
        case 5:  # overwrite with another part of the file
            begin, size = chance.randrange(len(content)), chance.randrange(1, 64)
            return content[:place] + content[begin : begin + size] + content[place + size :]
        case 6:  # an extreme number
            size = chance.choice((1, 2, 4, 8))
            value = chance.choice(INTEGERS) % 256**size
            return (
                content[:place]
                + value.to_bytes(size, chance.choice(("little", "big")))
                + content[place + size :]
            )
        case 7:  # zeros or ones
            size = chance.randrange(1, 32)
            return content[:place] + chance.choice((b"\0", b"\xff")) * size + content[place + size :]
        case _:  # another number in the text
            return _edit_digits(content, chance) or content[:place]


def _edit_digits(content: bytes, chance: random.Random) -> bytes | None:
    found = list(re.finditer(rb"-?\d+", content[:65_536]))
    if not found:
        return None
    match = chance.choice(found)
    return content[: match.start()] + str(chance.choice(INTEGERS)).encode() + content[match.end() :]


def _edit_gzip(content: bytes, chance: random.Random) -> bytes | None:
    if not content.startswith(b"\x1f\x8b"):
        return None
    try:
        return gzip.compress(mutate(gzip.decompress(content), chance))
    except (OSError, EOFError, zlib.error):
        return None


def _edit_zip(content: bytes, chance: random.Random) -> bytes | None:
    if not content.startswith(b"PK\x03\x04"):
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:
        return None
    if not members:
        return None
    chosen = chance.randrange(len(members))
    name, data = members[chosen]
    match chance.randrange(8):
        case 0:
            del members[chosen]
        case 1:
            members[chosen] = (chance.choice(members)[0], data)
        case 2:
            members[chosen] = (name, chance.choice(members)[1])
        case _:
            members[chosen] = (name, mutate(data, chance))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a name comes twice
        for name, data in members:
            archive.writestr(name, data)
    return written.getvalue()


def _edit_npy(content: bytes, chance: random.Random) -> bytes | None:
    if not content.startswith(b"\x93NUMPY\x01\x00"):
        return None
    end = 10 + int.from_bytes(content[8:10], "little")
    header = content[10:end].rstrip()
    kinds = (
        b"<f4",
        b"<f8",
        b"<i8",
        b"<i4",
        b"|b1",
        b"|u1",
        b"<c16",
        b"|O",
        b"<U7",
        b"|V8",
        b"<M8[s]",
        b">f4",
        b"<u8",
    )
    match chance.randrange(4):
        case 0:
            header = re.sub(rb"'[<>|=]\w+'", b"'" + chance.choice(kinds) + b"'", header, count=1)
        case 1:
            header = re.sub(rb"\(.*\)", repr(_random_shape(chance)).encode(), header, count=1)
        case 2:
            header = header.replace(b"False", b"True")
        case _:
            header = _edit_digits(header, chance) or header
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return content[:8] + len(header).to_bytes(2, "little") + header + content[end:]


def _random_shape(chance: random.Random) -> tuple[int, ...]:
    return tuple(chance.choice((*INTEGERS, 4, 10, 14)) for _ in range(chance.randrange(4)))


def _edit_safetensors(content: bytes, chance: random.Random) -> bytes | None:
    size = int.from_bytes(content[:8], "little")
    if not 2 <= size <= len(content) - 8 or content[8:9] != b"{":
        return None
    header = _edit_json(content[8 : 8 + size], chance)
    return None if header is None else len(header).to_bytes(8, "little") + header + content[8 + size :]


def _edit_json(content: bytes, chance: random.Random) -> bytes | None:
    """Another value, no value, or one too many, somewhere in the tree."""
    if content[:1] not in (b"{", b"["):
        return None
    try:
        tree = json.loads(content)
    except ValueError:
        return None
    places = list(_list_places(tree))
    if not places:
        return None
    holder, key = chance.choice(places)
    inner = holder[key]
    match chance.randrange(5):
        case 0:
            del holder[key]
        case 1 if isinstance(inner, str) and (edited := _edit_json(inner.encode(), chance)):
            holder[key] = edited.decode()  # JSON in JSON, as Minari writes spaces
        case 1:
            holder[key] = [inner]
        case 2:
            other, name = chance.choice(places)
            holder[key] = (
                json.loads(json.dumps(other[name])) if name in other or isinstance(other, list) else None
            )
        case _:
            holder[key] = chance.choice(VALUES)
    return json.dumps(tree).encode()


def _edit_records(content: bytes, chance: random.Random) -> bytes | None:
    """Another line of JSON lines."""
    lines = content.splitlines()
    if len(lines) < 2 or content[:1] != b"{":
        return None
    chosen = chance.randrange(len(lines))
    edited = _edit_json(lines[chosen], chance)
    return None if edited is None else b"\n".join([*lines[:chosen], edited, *lines[chosen + 1 :]])


def _list_places(tree: Any) -> Iterable[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _list_places(value)


def _run_batch(loader: str, source: Path, numbers: list[int], seconds: float) -> list[Outcome]:
    """Outcomes of the first mutants, up to the one that kills or blocks the process."""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, __file__, loader, str(source), folder, *map(str, numbers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        outcomes: list[Outcome] = []
        error = b""
        text = b""
        # Imports come first, and take longer.
        allowed = time.monotonic() + seconds + 60
        while len(outcomes) < len(numbers):
            ready, _, _ = select.select(
                [process.stdout, process.stderr], [], [], max(allowed - time.monotonic(), 0)
            )
            if not ready:
                process.kill()
                return [*outcomes, Outcome(numbers[len(outcomes)], "hang", f"no answer for {seconds} s")]
            if process.stderr in ready:
                error = (error + os.read(process.stderr.fileno(), 65_536))[-2000:]
            if process.stdout not in ready:
                continue
            chunk = os.read(process.stdout.fileno(), 65_536)
            if not chunk:
                code = process.wait()
                said = error.decode(errors="replace")
                if not outcomes and "MUTANTS BEGIN" not in said:
                    raise RuntimeError(f"the process for {loader} could not start: {said}")
                return [*outcomes, Outcome(numbers[len(outcomes)], "crash", f"exit {code}: {said}")]
            *lines, text = (text + chunk).split(b"\n")
            for line in lines:
                outcomes.append(Outcome(*json.loads(line)))
                allowed = time.monotonic() + seconds
        return outcomes


def _load_mutants(loader: str, source: Path, folder: Path, numbers: list[int]) -> None:
    """In the process of its own: one line of JSON for each mutant."""
    # What libraries print does not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, str(HERE))
    warnings.simplefilter("ignore")
    module, _, name = loader.partition(":")
    load = getattr(importlib.import_module(module), name)
    from vlbm.errors import InputError

    # The source must load, or refusing mutants would mean nothing; this also imports whatever it takes.
    load(source)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("MUTANTS BEGIN", file=sys.stderr, flush=True)
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        path = make_mutant(source, place, number)
        try:
            load(path)
            outcome = Outcome(number, "loaded")
        except InputError as error:
            sound = str(error) and "\n" not in str(error)
            outcome = Outcome(number, "refused" if sound else "bad message", str(error)[:500])
        except MemoryError as error:
            outcome = Outcome(number, "memory", repr(error))
        except Exception as error:
            outcome = Outcome(number, "traceback", _where(error))
        print(json.dumps(outcome), file=answers, flush=True)
        shutil.rmtree(place, ignore_errors=True)


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
    return f"{type(error).__name__}: {str(error)[:200]} ({place})"


if __name__ == "__main__":
    _load_mutants(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), [int(number) for number in sys.argv[4:]])
