"""Our programs call cuDNN as those of jax.nn do."""

import functools
import json
import re

import flash_cases
import jax
import pytest

import jaxkernels as jk
from jaxkernels._attention import cudnn

B, T, S, N, K, H = 2, 64, 96, 4, 2, 16
LENGTHS = {
    name: jax.ShapeDtypeStruct((B,), "int32")
    for name in ("query_seq_lengths", "key_value_seq_lengths")
}
CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "window": {"is_causal": True, "local_window_size": (5, 0)},
    "mask": {"mask": jax.ShapeDtypeStruct((B, 1, T, S), "bool")},
    "lengths": LENGTHS,
    "causal-lengths": {"is_causal": True, **LENGTHS},
}
_CALL = re.compile(r'custom_call @(__cudnn.*?)\(.*?\) (\{.*?)backend_config = "(.*?)"(.*)$', re.M)


def calls(attention, direction, dtype, **options):
    """Target, attributes, configuration, layouts and types of each call of the lowered program."""
    static = {name: x for name, x in options.items() if not hasattr(x, "shape")}
    arrays = {name: x for name, x in options.items() if hasattr(x, "shape")}

    def run(q, k, v, dy, others):
        of = functools.partial(attention, **others, **static, scale=0.25, implementation="cudnn")
        return of(q, k, v) if direction == "forward" else jax.vjp(of, q, k, v)[1](dy)

    q, k = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((B, T, N, H), (B, S, K, H)))
    text = jax.jit(run).trace(q, k, k, q, arrays).lower(lowering_platforms=("cuda",)).as_text()
    return [
        (target, attributes, json.loads(config.replace(r"\22", '"')), types)
        for target, attributes, config, types in _CALL.findall(text)
    ]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_calls_are_those_of_jax_nn(monkeypatch, case, direction, dtype):
    flash_cases.take_flash(monkeypatch)
    # jax.nn asks for cuDNN's version and the GPU when it is traced.
    monkeypatch.setattr(cudnn.peer(), "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(cudnn.peer(), "check_compute_capability", lambda capability: True)
    want = calls(jax.nn.dot_product_attention, direction, dtype, **case)
    assert len(want) == (1 if direction == "forward" else 2)
    if "mask" in case and want[-1][-1].count("f16>, tensor<2x1x64") > 1:
        pytest.skip("this JAX asks for the gradient of a mask")
    # Our primitives, not those of jax.nn, make the calls.
    monkeypatch.setattr(cudnn.peer(), "_dot_product_attention", None)
    assert calls(jk.dot_product_attention, direction, dtype, **case) == want
