"""What a traced program depends on, as a digest: equal only where tracing would give the same program."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from vlbm.version import LOADED

LIBRARIES = ("jax", "jaxlib", "equinox", "optax", "numpy")
# Packages whose classes are known by name: their code is in the digest, as source or as a version.
KNOWN = ("vlbm", "optax", "jax", "equinox")
PACKAGE = Path(__file__).parent


class NotPlainError(TypeError):
    """Something has no complete description: a function, or an object of a class from elsewhere."""


def fingerprint(*values: Any) -> str:
    """A digest of values and of all circumstances of tracing; refuses what cannot be told in full.

    Arrays count by shape and type, because a traced program takes them as arguments.
    """
    text = "\n".join([*_circumstances(), described(values)])
    return hashlib.sha256(text.encode()).hexdigest()


def described(value: Any) -> str:
    """All that can tell a value from another one, numbers in arrays apart."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return repr(value)
    if isinstance(value, jax.Array):
        return repr(form(value))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind in (tuple, list):
        return f"{name}({', '.join(map(described, value))})"
    if kind is dict:
        # In their order: it may be the order in which numbers are added up.
        return f"dict({', '.join(f'{described(key)}: {described(item)}' for key, item in value.items())})"
    # A class made within a function may hold whatever that function was given.
    if kind.__module__.split(".")[0] not in KNOWN or "<locals>" in name:
        raise NotPlainError(f"{name} is no plain value")
    if isinstance(value, Enum):
        return f"{name}.{value.name}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return f"{name}({', '.join(map(described, value))})"
    if is_dataclass(value):
        named = (f"{field.name}={described(getattr(value, field.name))}" for field in fields(value))
        return f"{name}({', '.join(named)})"
    raise NotPlainError(f"{name} is no plain value")


def form(array: jax.Array) -> jax.ShapeDtypeStruct:
    """What tracing sees of an array, wherever it lies."""
    # Keys of random numbers have no weak type.
    return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=getattr(array, "weak_type", False))


def _circumstances() -> list[str]:
    """Everything but the arguments: code, versions, the platform, and how JAX is set up."""
    settings = {name: getattr(jax.config, name, value) for name, value in sorted(jax.config.values.items())}
    return [
        source_digest(PACKAGE, LOADED),
        f"python {sys.version}",
        *_versions(),
        f"{jax.default_backend()} {os.environ.get('XLA_FLAGS')}",
        described(settings),
        f"mesh {jax.sharding.get_abstract_mesh()}",
    ]


@cache
def _versions() -> tuple[str, ...]:
    return tuple(f"{library} {version(library)}" for library in LIBRARIES)


@cache
def source_digest(package: Path, loaded: float) -> str:
    """A digest of all source files; refused if one has changed since `loaded`: what runs is the old one."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        if path.stat().st_mtime > loaded:
            raise NotPlainError(f"{path} has changed since it was imported")
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
