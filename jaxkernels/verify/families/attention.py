"""dot_product_attention: grouped heads, masks, biases, windows and lengths; on a GPU by cuDNN too, where it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxkernels as jk
from jaxkernels._attention import choice, default
from jaxkernels._rows.masked_kernels import band_of
from jaxkernels.verify.problem import Arrays, Judged, Problem, differentiated, expect
from jaxkernels.verify.truth import attention
from jaxkernels.verify.truth.compare import storage
from jaxkernels.verify.truth.rows import DTYPES

KINDS = ("normal", "peaked", "faint", "equal")
_LENGTHS = ("query_seq_lengths", "key_value_seq_lengths")


class Attention:
    """Options: sizes [B, T, S, N, K, H], mask and bias (shapes, or None), lengths (names), keyword arguments."""

    operations = ("dot_product_attention",)
    derivatives = ("value", "vjp", "remat")

    def dtypes(self, operation: str) -> tuple[str, ...]:
        """All that have kernels."""
        return DTYPES

    def choose(
        self, operation: str, dtype: str, derivative: str, most: int, rng: np.random.Generator
    ) -> tuple[dict[str, Any], str | None]:
        """Any of the options, each with its own chance."""
        batch, k_heads, groups = (int(x) for x in rng.choice([1, 2, 3], 3))
        h = int(rng.choice([1, 3, 4, 8, 16, 33, 64])) if rng.random() < 0.98 else 0
        room = max(most // (batch * k_heads * groups), 1)
        s = int(min(rng.choice([1, 2, 5, 9, 16, 33, 64, 130]), room))
        t = int(min(rng.choice([1, 3, 7, 16, 31, s]), max(room // s, 1)))
        heads = k_heads * groups
        full = [batch, heads, t, s]

        def side(chance: float) -> list[int] | None:
            if rng.random() > chance:
                return None
            return [1 if rng.random() < 0.4 else size for size in full]

        given: dict[str, Any] = {}
        if rng.random() < 0.4:
            given["is_causal"] = True
        if rng.random() < 0.25:
            left, right = (int(x) for x in rng.choice([0, 1, 3, s], 2))
            given["local_window_size"] = [[left, right], left][rng.integers(2)]
        if rng.random() < 0.3:
            given["scale"] = float(rng.choice([0.3, 1.0, 2.0]))
        if rng.random() < 0.3:
            given["empty_rows"] = "mean"
        options = {
            "sizes": [batch, t, s, heads, k_heads, h],
            "mask": side(0.4),
            "bias": side(0.3),
            "lengths": [name for name in _LENGTHS if rng.random() < 0.2],
            "arguments": given,
        }
        # A program of these sizes would never be given to cuDNN unasked.
        if not _cudnn_serves(dtype, options) or rng.random() < 0.3:
            return options, None
        given.pop("empty_rows", None)
        return options, "cudnn"

    def member(self, problem: Problem, rng: np.random.Generator) -> tuple[Arrays, bool]:
        """q, k, v, mask, bias, lengths and t."""
        o, dtype = problem.options, storage(problem.dtype)
        batch, t, s, heads, k_heads, h = o["sizes"]
        kind = str(rng.choice(KINDS))
        size = {"peaked": 6.0, "faint": 1e-3}.get(kind, 1.5)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape)

        q, k = size * normal(batch, t, heads, h), size * normal(batch, s, k_heads, h)
        if kind == "equal":
            k[:] = k[:, :1]
        operands = {"q": q, "k": k, "v": 1.5 * normal(batch, s, k_heads, h)}
        if o["bias"] is not None:
            operands["bias"] = normal(*o["bias"])
        if problem.wants_gradient:
            operands["t"] = normal(batch, t, heads, h)
        operands = {name: x.astype(dtype) for name, x in operands.items()}
        if o["mask"] is not None:
            operands["mask"] = rng.random(o["mask"]) < 0.6
        for name, most in zip(_LENGTHS, (t, s), strict=True):
            if name in o["lengths"]:
                operands[name] = rng.integers(0, most + 1, batch).astype(np.int32)
        return operands, True

    def core(self, problem: Problem) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
        """The call."""
        given = _arguments(problem)
        given |= {"implementation": problem.how}

        def result(operands: dict[str, jax.Array]) -> jax.Array:
            lengths = {name: operands[name] for name in problem.options["lengths"]}
            return jk.dot_product_attention(
                operands["q"],
                operands["k"],
                operands["v"],
                operands.get("bias"),
                operands.get("mask"),
                **lengths,
                **given,
            )

        return lambda operands: differentiated(problem, result, operands, ("q", "k", "v"))

    def judge(
        self, problem: Problem, operands: Arrays, results: Arrays, alike: np.ndarray
    ) -> dict[str, Judged]:
        """Members are further members of the batch."""
        batch, _, _, _, _, _ = problem.options["sizes"]
        count = len(alike)

        def together(x: np.ndarray) -> np.ndarray:
            whole = np.broadcast_to(x, (count, batch, *x.shape[2:]))
            return whole.reshape(count * batch, *x.shape[2:])

        merged = {name: together(x) for name, x in operands.items()}
        options = {name: merged[name] for name in merged if name not in ("q", "k", "v", "t")}
        given = _arguments(problem)
        truth = attention.Truth(
            merged["q"], merged["k"], merged["v"], problem.dtype, **options, **given
        )

        def held(name: str, like: np.ndarray, want: np.ndarray, limit: np.ndarray) -> Judged:
            got = expect(results, name, like.shape[1:], like.dtype)
            return Judged(got, want.reshape(got.shape), limit.reshape(got.shape))

        judged = {"y": held("y", operands["q"], *truth.result())}
        if problem.wants_gradient:
            wanted = truth.gradients(merged["t"])
            for name in ("q", "k", "v"):
                judged[f"d{name}"] = held(f"d{name}", operands[name], *wanted[name])
        return judged


def _cudnn_serves(dtype: str, options: dict[str, Any]) -> bool:
    """Whether cuDNN can compute a problem on this machine."""
    machine = default.this_machine()
    if machine is None:
        return False
    batch, t, s, heads, k_heads, h = options["sizes"]
    given = options["arguments"]
    window = given.get("local_window_size")
    window = tuple(window) if isinstance(window, list) else window
    asked = choice.Problem(
        (batch, t, s, heads, k_heads, h),
        dtype,
        bias=None if options["bias"] is None else dtype,
        has_mask=options["mask"] is not None,
        has_lengths=bool(options["lengths"]),
        band=band_of(given.get("is_causal", False), window, from_end=False),
        scale=given.get("scale", 1.0),
    )
    return not choice.why_not_cudnn(asked, machine)


def _arguments(problem: Problem) -> dict[str, Any]:
    given = dict(problem.options["arguments"])
    if isinstance(given.get("local_window_size"), list):
        given["local_window_size"] = tuple(given["local_window_size"])
    return given
