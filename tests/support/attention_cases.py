"""Inputs for the tests of attention, and the comparison with `jaxkernels.verify.truth.attention`."""

import dataclasses

import numpy as np
from oracle import assert_within, storage

from jaxkernels.verify.truth.attention import Truth

__all__ = ["SIZES", "Sizes", "Truth", "arguments", "check", "operands"]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """B batch, T queries, S keys, N query heads, K key heads, H depth."""

    B: int
    T: int
    S: int
    N: int
    K: int
    H: int


SIZES = {
    "heads": Sizes(2, 5, 7, 4, 4, 8),
    "grouped": Sizes(2, 7, 5, 6, 2, 4),
    "one-key-head": Sizes(1, 6, 6, 3, 1, 8),
    "decode": Sizes(2, 1, 9, 4, 2, 16),
    "vector": Sizes(2, 1, 16, 2, 2, 64),
}


def operands(sizes, dtype="float32", seed=0):
    rng = np.random.default_rng([seed, *dataclasses.astuple(sizes)])
    s = sizes
    shapes = (s.B, s.T, s.N, s.H), (s.B, s.S, s.K, s.H), (s.B, s.S, s.K, s.H)
    return [(1.5 * rng.standard_normal(shape)).astype(storage(dtype)) for shape in shapes]


def arguments(sizes, seed=0):
    """Sets of keyword arguments by name; masks and lengths leave some queries without keys."""
    rng = np.random.default_rng([seed, 1, *dataclasses.astuple(sizes)])
    s = sizes

    def mask(*shape):
        return rng.random(shape) < 0.6

    def bias(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def lengths(most, *some):
        return np.minimum(np.array(some[: s.B], np.int32), most).astype(np.int32)

    empty = mask(s.B, 1, s.T, s.S)
    empty[0, 0, 0] = False
    return {
        "plain": {},
        "scale": {"scale": 0.3},
        "causal": {"is_causal": True},
        "window": {"local_window_size": 1},
        "window-pair": {"local_window_size": (2, 0)},
        "causal-window": {"is_causal": True, "local_window_size": (2, 3)},
        "key-lengths": {"key_value_seq_lengths": lengths(s.S, 3, 0)},
        "query-lengths": {"query_seq_lengths": lengths(s.T, 1, 4)},
        "mask": {"mask": empty},
        "mask-heads": {"mask": mask(1, s.N, s.T, s.S)},
        "mask-keys": {"mask": mask(s.B, 1, 1, s.S)},
        "mask-2d": {"mask": mask(s.T, s.S)},
        "bias": {"bias": bias(s.B, s.N, s.T, s.S)},
        "bias-keys": {"bias": bias(1, s.N, 1, s.S)},
        "bias-queries": {"bias": bias(s.B, 1, s.T, 1)},
        "everything": {
            "bias": bias(1, s.N, s.T, s.S),
            "mask": empty,
            "scale": 0.4,
            "is_causal": True,
            "local_window_size": (3, 1),
            "query_seq_lengths": lengths(s.T, 5, 3),
            "key_value_seq_lengths": lengths(s.S, 4, 6),
        },
    }


def check(got, want_and_bound, what=""):
    want, bound = want_and_bound
    assert np.shape(got) == want.shape, f"{what}: {np.shape(got)}, not {want.shape}"
    assert_within(got, want, bound, what)
