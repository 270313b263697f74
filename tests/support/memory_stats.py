"""XLA's memory analysis of a compiled program."""

import jax

# XLA rounds buffers up, and may keep a few bytes of constants.
SLACK = 4096


def stats(function, *arrays, **options):
    return jax.jit(function, **options).lower(*arrays).compile().memory_analysis()
