"""Traced programs are kept on disk: a second start need not trace and lower what it does not compile.

JAX keeps compiled programs, but finds them by the lowered program, and tracing and lowering a training step
takes longer than importing everything. What is kept is JAX's own portable format of lowered programs
(`jax.export`), found by a digest of all that it depends on (`fingerprints.py`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import jax

from vlbm.fingerprints import fingerprint, form
from vlbm.places import cache_directory
from vlbm.storage import write_atomically

MOST = 200  # programs that are kept, of some 100 kB each

# f(what stays the same, what every call moves on) gives the moved and, in plain containers, what to tell.
Advance = Callable[[Any, Any], tuple[Any, Any]]


def kept(advance: Advance, settings: Any) -> Advance:
    """The compiled function, taken from the disk where it has been traced before.

    `settings` must say all that the function depends on beside its arguments. Where they or the arguments
    have no complete description, and where programs are not to be kept, it is the function itself.
    What was just traced runs by way of the kept form too, so that a first run and a second are the same.
    """
    programs: dict[Any, Advance] = {}
    lock = Lock()  # models that train side by side wait for the first to trace

    def call(fixed: Any, moving: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten((fixed, moving))
        if not all(isinstance(leaf, jax.Array) for leaf in leaves):
            return advance(fixed, moving)
        made_for = structure, tuple(map(form, leaves))
        with lock:
            if made_for not in programs:
                programs[made_for] = _program(advance, settings, fixed, moving)
        return programs[made_for](fixed, moving)

    return call


def _program(advance: Advance, settings: Any, fixed: Any, moving: Any) -> Advance:
    if os.environ.get("VLBM_CACHE") == "" or getattr(jax.config, "jax_disable_jit", False):
        return advance
    try:
        path = cache_directory() / "traced" / fingerprint(settings, fixed, moving)
        exported = _read(path)
        if exported is None:
            exported = _traced(advance, fixed, moving)
            _write(path, exported)
        return _running(exported)
    # Keeping is not worth a failure of its own: what is wrong with the function is told when it is called.
    except Exception:
        return advance


def _traced(advance: Advance, fixed: Any, moving: Any) -> Any:
    from jax import export

    arrays, structure = jax.tree.flatten((fixed, moving))
    before: Any = jax.tree.structure(moving)

    @jax.jit
    def flat(*arrays: Any) -> tuple[list[Any], Any]:
        moved, told = advance(*jax.tree.unflatten(structure, arrays))
        leaves, after = jax.tree.flatten(moved)
        if before != after:
            raise TypeError("what is moved on changes its structure")
        return leaves, told

    exported = export.export(flat)(*map(form, arrays))
    # These functions are only there once JAX has been told to look for them.
    if b"lapack" in exported.mlir_module_serialized:
        raise TypeError("a program with linear algebra is not kept")
    return exported


def _running(exported: Any) -> Advance:
    primitive = _stored_primitive()

    @jax.jit
    def advance(*arrays: Any) -> tuple[list[Any], Any]:
        return jax.tree.unflatten(exported.out_tree, primitive.bind(*arrays, exported=exported))

    def call(fixed: Any, moving: Any) -> tuple[Any, Any]:
        moved, told = advance(*jax.tree.leaves((fixed, moving)))
        return jax.tree.unflatten(jax.tree.structure(moving), moved), told

    return call


@cache
def _stored_primitive() -> Any:
    """Calls a kept program. JAX's own way (`Exported.call`) imports SciPy's linear algebra first, 0.2 s."""
    from jax.extend.core import Primitive
    from jax.extend.mlir import deserialize_portable_artifact, ir
    from jax.extend.mlir.dialects import func
    from jax.interpreters import mlir

    def lower(context: Any, *arguments: Any, exported: Any) -> Any:
        module = context.module_context.module
        with module.context:
            stored = deserialize_portable_artifact(exported.mlir_module_serialized)
        main: Any = ir.SymbolTable(stored.operation)["main"]
        results = main.type.results  # merging renames it
        name = mlir.merge_mlir_modules(
            module, "stored", stored, dst_symtab=context.module_context.symbol_table
        )
        given = [arguments[index] for index in exported.module_kept_var_idx]
        return func.CallOp(results, ir.FlatSymbolRefAttr.get(name), given).results

    primitive = Primitive("stored")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *arguments, exported: exported.out_avals)
    mlir.register_lowering(primitive, lower)
    return primitive


def _read(path: Path) -> Any:
    """The program in a file; None if there is none or it is not whole."""
    from jax import export

    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, program = content[:32], content[32:]
    if digest != hashlib.sha256(program).digest():
        return None
    with suppress(OSError):
        os.utime(path)  # those that are used stay longest
    return export.deserialize(bytearray(program))


def _write(path: Path, exported: Any) -> None:
    program = bytes(exported.serialize())
    content = hashlib.sha256(program).digest() + program
    with suppress(OSError):  # a full or read-only disk only makes the next start slower
        write_atomically(path, lambda temporary: temporary.write_bytes(content))
        _make_room(path.parent)


def _make_room(directory: Path) -> None:
    """Let those go that were not used for longest: every version of vlbm has programs of its own."""
    used = sorted((file.stat().st_mtime, file) for file in directory.iterdir())
    for _, file in used[:-MOST]:
        file.unlink(missing_ok=True)
