"""In which order policies make the steps of a stretch: block after block, and guests by turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vlbm.cores import available_cores
from vlbm.estimators.critics.bellman import Shape
from vlbm.parallel import DEVICE_AXIS, passed_on

CACHE = 2 << 20  # bytes of networks trained together: more of them would be read from afar at every step
FEW = 1 << 20  # bytes: with fewer, products are so small that it takes longer than to read from afar

# Trains the networks of a block, by what its policies do, from one step to another.
Stretch = Callable[[Any, Float[Array, "strides batch policies act"], Int[Array, "2"], Shape], Any]
# The same for all blocks of a device, each with bounds of its own.
Train = Callable[[Any, Float[Array, "blocks ..."], Int[Array, "blocks 2"]], Any]


def in_blocks(
    stretch: Stretch,
    carried: Any,
    answers: Float[Array, "strides batch policies act"],
    bounds: Int[Array, "2"],
    shape: Shape,
) -> Any:
    """One block of policies after the other makes all steps of the stretch: caches then hold its networks.

    All that is `carried` has the axes copies and policies first. An empty seat is worked for like any other,
    unless a block is one policy: then those on the last seats become guests.
    """
    seats = shape.lot.policies
    size = _block_size(carried, seats)
    blocks = jax.tree.map(partial(_cut, size=size, axis=1), carried), _cut(answers, size, axis=2)
    train = _one_by_one(stretch, replace(shape.lot, policies=size))
    if size == 1 and shape.empty == 1 and shape.lots > 1:
        done = _with_guests(train, *blocks, bounds, shape)
    else:
        done = train(*blocks, jnp.broadcast_to(bounds, (seats // size, 2)))
    return jax.tree.map(_joined, done)


def _with_guests(train: Train, carried: Any, answers: Array, bounds: Int[Array, "2"], shape: Shape) -> Any:
    """The policies on the last seats go round: every device trains each for a while, and none waits.

    The last device's last seat is empty, and goes round too. While a device has it, its other policies make
    more steps: so all devices are as long at it, and at the end all policies have made as many.
    """
    lots, others = shape.lots, shape.lot.policies - 1
    policies = shape.policies - shape.empty
    begin, steps = bounds[0], bounds[1] - bounds[0]
    spared = (jax.lax.axis_index(DEVICE_AXIS) + 1) % lots  # the turn in which this device has the empty seat

    def reached(turn: Array) -> tuple[Array, Array]:
        """The step that those who stay have come to before a turn, and the one that guests have."""
        # A turn is as long as all policies need for as many steps as there are devices. A guest makes
        # these, the rest is for those who stay; in the turn without a guest they have his part as well.
        shares = (policies - lots) * turn + lots * (turn > spared)
        return begin + steps * shares // (others * lots**2), begin + steps * turn // lots

    def part(turn: Array, held: tuple[Any, Array]) -> tuple[Any, Array]:
        (stay, guest), (stay_until, guest_until) = reached(turn), reached(turn + 1)
        guest_until = jnp.where(turn == spared, guest, guest_until)
        own = jnp.broadcast_to(jnp.stack([stay, stay_until]), (others, 2))
        carried = train(*held, jnp.concatenate([own, jnp.stack([guest, guest_until])[None]]))
        blocks = carried, held[1]
        guest_blocks = passed_on(jax.tree.map(lambda leaf: leaf[-1], blocks))
        return jax.tree.map(lambda leaf, block: leaf.at[-1].set(block), blocks, guest_blocks)

    return jax.lax.fori_loop(0, lots, part, (carried, answers))[0]


def _one_by_one(stretch: Stretch, shape: Shape) -> Train:
    def train(carried: Any, answers: Array, bounds: Array) -> Any:
        def one(block: tuple[Any, Array, Array]) -> Any:
            return stretch(*block, shape)

        return jax.lax.map(one, (carried, answers, bounds))

    return train


def _block_size(carried: Any, seats: int) -> int:
    # Cores that share a device divide products among them, and small ones badly.
    if len(jax.local_devices()) < available_cores():
        return seats
    each = sum(leaf.nbytes for leaf in jax.tree.leaves(carried)) // seats
    sizes = [size for size in range(1, seats + 1) if seats % size == 0]
    size = max([size for size in sizes if size * each <= CACHE], default=1)
    return size if size * each >= FEW else min([more for more in sizes if more * each >= FEW], default=seats)


def _cut(leaf: Array, size: int, axis: int) -> Array:
    blocks = leaf.reshape(*leaf.shape[:axis], -1, size, *leaf.shape[axis + 1 :])
    return jnp.moveaxis(blocks, axis, 0)


def _joined(leaf: Float[Array, "blocks copies size ..."]) -> Float[Array, "copies policies ..."]:
    return jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1, *leaf.shape[3:])
