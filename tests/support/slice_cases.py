"""Row operations on operands that begin at every element of 16 bytes; for the tests and the sanitizer."""

import math

import cases
import jax
import oracle


def offsets(dtype):
    """Every place of an element within 16 bytes."""
    return range(16 // oracle.storage(dtype).itemsize)


def cut(flat, offset, shape):
    """An array of this shape from the midst of a flat one."""
    return flat[offset : offset + math.prod(shape)].reshape(shape)


def flat_arrays(dtype, shape, seed):
    """Logits and cotangents, with room for every offset in front and some elements behind."""
    size = math.prod(shape) + 32
    return (
        cases.logits("normal", 1, size, dtype, seed)[0],
        cases.cotangents(1, size, dtype, seed)[0],
    )


def lanes_of(cols):
    """The least number of a row's partial sums: a lane of staged rows has up to 16 elements; longer rows have 32 lanes."""
    return max(cols // 16, 1) if cols <= 512 else 32


def check_at_every_offset(dtype, shape):
    """All operations, of x, a cotangent and a number for each row that begin at the same place and at different ones."""
    per_row = (*shape[:-1], 1)
    places = [(x, (x + shift) % len(offsets(dtype))) for x in offsets(dtype) for shift in (0, 1)]

    @jax.jit
    def program(flat_x, flat_t):
        xs = [cut(flat_x, x, shape) for x, _ in places]
        ts = [cut(flat_t, t, shape) for _, t in places]
        scalars = [cut(flat_t, t, per_row) for _, t in places]
        return cases.all_operations.__wrapped__(xs, ts, scalars, tangents=False)

    flat_x, flat_t = flat_arrays(dtype, shape, 1)
    with cases.x64(dtype):
        results = jax.device_get(program(flat_x, flat_t))
    for (x, t), result in zip(places, results, strict=True):
        about = {"scalars": cut(flat_t, t, per_row), "lanes": lanes_of(shape[-1])}
        operands = cut(flat_x, x, shape), cut(flat_t, t, shape)
        cases.check_results(*operands, result, dtype, operations=oracle.OPERATIONS, **about)
