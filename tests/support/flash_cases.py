"""Calls of attention that take the primitives of flash attention, at any size and without a GPU.

On a GPU cuDNN and our kernels run them. Elsewhere choices are those for an H200, and a CPU lowers the primitives as CUDA
does, with a model of cuDNN, and with the plain form in the place of our kernels.
"""

import functools

import attention_cases
import cudnn_model  # noqa: F401 (gives JAX's calls of cuDNN a lowering for CPUs)
import jax
import numpy as np
from attention_cases import check
from cases import ON_GPU
from jax._src.interpreters import mlir
from oracle import storage

import jaxkernels as jk
from jaxkernels._attention import choice, flash, plain, tensor_cores
from jaxkernels._core import devices, registry

DTYPES = ("bfloat16", "float16")
Sizes = attention_cases.Sizes

SIZES = {
    "heads": Sizes(2, 64, 64, 4, 4, 64),
    "grouped": Sizes(2, 64, 96, 6, 2, 32),
    "one-key-head": Sizes(1, 130, 66, 4, 1, 128),
    "odd": Sizes(2, 37, 53, 2, 2, 8),
    "deep": Sizes(1, 64, 128, 2, 2, 256),
}


def h200():
    # A function, because a module's object would outlive jaxkernels._cpu, which then prints a warning.
    return choice.Machine(devices.limits_of("h200"), 91002)


def take_flash(monkeypatch, on_a_cpu=not ON_GPU):
    """Chooses cuDNN and our kernels wherever they serve."""
    monkeypatch.setattr(choice, "_is_faster_in_cudnn", lambda problem: True)
    monkeypatch.setattr(choice, "LEAST_SCORES", 0)
    if on_a_cpu:
        take_hopper(monkeypatch)
        for operation in ("forward", "backward"):
            monkeypatch.setattr(tensor_cores, operation, getattr(plain, operation))
    rules = mlir._platform_specific_lowerings
    for primitive in (flash.attention_p, flash.backward_p):
        monkeypatch.setitem(rules["cpu"], primitive, rules["cuda"][primitive])


def take_hopper(monkeypatch):
    """Makes a machine without a GPU trace and lower as one with an H200 does."""
    monkeypatch.setattr(choice, "this_machine", h200)
    monkeypatch.setattr(registry, "has_kernels", lambda platform: platform in ("cpu", "cuda"))


def kernels():
    """The name of our flash kernels if this machine has them; None, the default, if not."""
    has_any = ON_GPU and registry.has_kernels("cuda")
    return "ffi_flash" if has_any and devices.limits_of(None).has_wgmma else None


def arguments(sizes, dtype, seed=0):
    """Sets of keyword arguments that cuDNN serves, by name; some leave queries without keys."""
    rng = np.random.default_rng([seed, 2])
    s = sizes

    def bias(*shape):
        return rng.standard_normal(shape).astype(storage(dtype))

    def lengths(most, *some):
        return np.minimum(np.array(some[: s.B], np.int32), most).astype(np.int32)

    found = {
        "plain": {},
        "scale": {"scale": 0.3},
        "causal": {"is_causal": True},
        "query-lengths": {"query_seq_lengths": lengths(s.T, 0, 17)},
        "key-lengths": {"key_value_seq_lengths": lengths(s.S, 21, 0)},
        "causal-lengths": {
            "is_causal": True,
            "query_seq_lengths": lengths(s.T, 33, 200),
            "key_value_seq_lengths": lengths(s.S, 200, 5),
        },
    }
    if s.T <= s.S:
        found["window"] = {"is_causal": True, "local_window_size": 9}
        found["left-window"] = {"local_window_size": (12, 0)}
    if s.T % 2 == 0 and s.S % 2 == 0:
        empty = rng.random((s.B, 1, s.T, s.S)) < 0.6
        empty[0, 0, 3] = False
        # With the causal band the first queries see nothing, as in texts that are padded on the left.
        padded = np.arange(s.S)[None, None, None] >= np.arange(5, 5 + s.B)[:, None, None, None]
        hidden = bias(s.B, 1, s.T, s.S)
        hidden[0, 0, 2] = -np.inf
        hidden[:, :, :, 7] = -np.inf
        found |= {
            "mask": {"mask": empty},
            "mask-heads": {"mask": rng.random((1, s.N, s.T, s.S)) < 0.6},
            "mask-keys-causal": {"mask": padded, "is_causal": True},
            "bias": {"bias": bias(s.B, s.N, s.T, s.S)},
            "bias-heads": {"bias": bias(1, s.N, s.T, s.S)},
            "bias-of-keys": {"bias": bias(1, 1, 1, s.S)},
            "bias-infinite": {"bias": hidden},
            "mask-and-bias": {"mask": empty, "bias": bias(1, s.N, s.T, s.S), "is_causal": True},
            "everything": {
                "mask": empty,
                "bias": bias(1, s.N, 1, s.S),
                "scale": 0.2,
                "is_causal": True,
                "query_seq_lengths": lengths(s.T, 50, 30),
                "key_value_seq_lengths": lengths(s.S, 40, 60),
            },
        }
    return found


def calls_of_cudnn(function, *operands):
    """How many calls of cuDNN a function makes, lowered for CUDA devices on any machine."""
    traced = jax.jit(function).trace(*operands)
    return traced.lower(lowering_platforms=("cuda",)).as_text().count("@__cudnn$fmha")


def truth(operands, dtype, **options):
    """The truth of a call, whose bias of -inf hides as a mask does."""
    bias = options.get("bias")
    if bias is not None and np.isneginf(bias.astype(np.float32)).any():
        finite = ~np.isneginf(bias.astype(np.float32))
        mask = options.get("mask")
        options["mask"] = finite if mask is None else finite & mask
        options["bias"] = np.where(finite, bias, 0)
    return attention_cases.Truth(*operands, dtype, **options)


def pulled(q, k, v, dy, attention=jk.dot_product_attention, **options):
    """The result, the log-sum-exps, and the cotangents of q, k, v and the bias."""
    moving = (q, k, v, options.pop("bias")) if "bias" in options else (q, k, v)
    of = functools.partial(attention, return_residual=True, **options)
    y, pull, sums = jax.vjp(of, *moving, has_aux=True)
    return y, sums, pull(dy)


def value_and_cotangents(q, k, v, dy, **options):
    """The result, and the cotangents of q, k and v."""
    y, pull = jax.vjp(functools.partial(jk.dot_product_attention, **options), q, k, v)
    return y, *pull(dy)


def within_lengths(batch, t, options):
    """Which rows (B, 1, T) are within the lengths of the queries."""
    lengths = options.get("query_seq_lengths", np.full(batch, t))
    return np.arange(t) < np.reshape(lengths, (-1, 1, 1))


def check_pulled(results, operands, dy, name, **options):
    y, sums, (*found, last) = results
    expected = truth(operands, "float32", **options)
    check(y, expected.result(), name)
    rows = within_lengths(*y.shape[:2], options)
    want = np.where(rows, expected.log_sum_exp, -np.inf).swapaxes(1, 2)
    np.testing.assert_allclose(sums, want, rtol=2e-6, atol=2e-5, err_msg=name)
    want = expected.gradients(dy)
    if "bias" in options:
        shared = tuple(i for i, size in enumerate(last.shape) if size == 1)
        total = [part.sum(shared, keepdims=True) for part in want["scores"]]
        check(last, total, f"{name}: dbias")
    else:
        found.append(last)
    for letter, x in zip("qkv", found, strict=True):
        check(x, want[letter], f"{name}: d{letter}")
