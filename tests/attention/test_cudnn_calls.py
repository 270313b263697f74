"""Our custom calls of cuDNN's attention are those that jax.nn makes."""

import importlib
import json
import re

import flash_cases
import jax
import jax.numpy as jnp
import pytest

import jaxkernels as jk
from jaxkernels._attention import cudnn

B, T, S, N, K, H = 2, 64, 96, 4, 2, 16

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "local_window_size": (5, 0)},
    "mask": {"mask": (B, 1, T, S)},
    "lengths": {"lengths": True},
    "causal-lengths": {"is_causal": True, "lengths": True},
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
directions = pytest.mark.parametrize("direction", ["forward", "backward"])


@pytest.fixture
def without_a_gpu(monkeypatch):
    """jax.nn asks for cuDNN's version and the GPU when it is traced."""
    peer = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(peer, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(peer, "check_compute_capability", lambda capability: True)


def abstract(shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def operands(case, dtype):
    """q, k, v, the cotangent, and what else the case has."""
    arrays = [abstract((B, T, N, H), dtype)]
    arrays += [abstract((B, S, K, H), dtype)] * 2 + arrays
    mask = [abstract(case["mask"], "bool")] if "mask" in case else []
    lengths = [abstract((B,), "int32")] * 2 if "lengths" in case else []
    return [*arrays, *mask, *lengths]


def split(case, others):
    """The mask or None, and the lengths or None."""
    mask = others[0] if "mask" in case else None
    return mask, tuple(others[-2:]) if "lengths" in case else None


def peer_of(case, direction, function=jax.nn.dot_product_attention):
    def run(q, k, v, dy, *others):
        mask, lengths = split(case, others)
        q_lengths, k_lengths = lengths or (None, None)

        def attention(q, k, v):
            return function(
                q,
                k,
                v,
                mask=mask,
                scale=0.25,
                is_causal=case.get("is_causal", False),
                local_window_size=case.get("local_window_size"),
                query_seq_lengths=q_lengths,
                key_value_seq_lengths=k_lengths,
                implementation="cudnn",
            )

        if direction == "forward":
            return attention(q, k, v)
        return jax.vjp(attention, q, k, v)[1](dy)

    return run


def ours_of(case, direction):
    window = case.get("local_window_size", (-1, 0))[0] + 1
    kind = cudnn.Kind(0.25, case.get("is_causal", False), window)

    def run(q, k, v, dy, *others):
        mask, lengths = split(case, others)
        bias = None if mask is None else jnp.where(mask, 0, -1).astype(q.dtype)
        inputs = cudnn.Inputs(q, k, v, bias, lengths)
        if direction == "forward":
            return cudnn.forward(inputs, kind, keeps_sums=False)
        y, sums = cudnn.forward(inputs, kind, keeps_sums=True)
        return cudnn.backward(inputs, sums, y, dy, kind)

    return run


_CALL = re.compile(r"stablehlo\.custom_call @(__cudnn\S+?)\(.*?\) \{(.*)\} : (\(.*\) -> .*)$")


def calls(run, arrays):
    """Target, configuration, layouts and types of each call of the lowered program."""
    text = jax.jit(run).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    found = []
    for line in text.splitlines():
        if not (match := _CALL.search(line)):
            continue
        target, attributes, types = match.groups()
        config = re.search(r'backend_config = "((?:[^"\\]|\\.)*)"', attributes)
        assert config is not None
        layouts = re.findall(r"(?:operand|result)_layouts = \[.*?\]", attributes)
        version = re.search(r"api_version = \d+", attributes)
        parsed = json.loads(re.sub(r"\\22", '"', config.group(1)))
        found.append((target, parsed, layouts, types, version and version.group()))
    return found


@cases
@directions
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_calls_are_those_of_jax_nn(without_a_gpu, case, direction, dtype):
    arrays = operands(case, dtype)
    ours, peers = (calls(make(case, direction), arrays) for make in (ours_of, peer_of))
    assert len(ours) == (1 if direction == "forward" else 2)
    if "mask" in case and peers[-1][3].count("f16>, tensor<2x1x64") > 1:
        pytest.skip("this JAX asks for the gradient of a mask")
    assert ours == peers


@cases
@directions
def test_the_pinned_function_makes_the_same_calls(without_a_gpu, monkeypatch, case, direction):
    """From what a user passes: scale, band, mask and lengths."""
    flash_cases.take_flash(monkeypatch)
    arrays = operands(case, "bfloat16")
    want = calls(peer_of(case, direction), arrays)
    ours = peer_of(case, direction, jk.dot_product_attention)
    assert "jaxkernels_flash_attention" in str(jax.make_jaxpr(ours)(*arrays))  # not jax.nn's own
    got = calls(ours, arrays)
    if "mask" in case and want[-1][3].count("bf16>, tensor<2x1x64") > 1:
        pytest.skip("this JAX asks for the gradient of a mask")
    assert got == want
