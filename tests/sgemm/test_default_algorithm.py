"""default_algorithm and its environment variable: the rung of products that name none."""

import re
from concurrent import futures

import jax
import numpy as np
import pytest
from programs import run_python

import jaxkernels as jk

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.ones((4, 2), np.float32)


def rungs_of(function, *operands):
    """The algorithms of the products in a trace, nested ones included."""
    return re.findall(r"algorithm='(\w+)'", str(jax.make_jaxpr(function)(*operands)))


def test_a_block_decides_and_ends():
    assert rungs_of(jk.matmul, A, B) == ["auto"]
    with jk.default_algorithm("warp_tile") as nothing:
        assert nothing is None
        assert rungs_of(jk.matmul, A, B) == ["warp_tile"]
        assert rungs_of(lambda a, b: jk.sgemm(a, b), A, B) == ["warp_tile"]
        with jk.default_algorithm(None):
            assert rungs_of(jk.matmul, A, B) == ["auto"]
        assert rungs_of(lambda a, b: jk.matmul(a, b, algorithm="naive"), A, B) == ["naive"]
        of_gradient = rungs_of(jax.grad(lambda a: jk.matmul(a, B).sum()), A)
        assert set(of_gradient) == {"warp_tile"}
    assert rungs_of(jk.matmul, A, B) == ["auto"]
    with pytest.raises(RuntimeError, match="out"), jk.default_algorithm("naive"):
        raise RuntimeError("out")
    assert rungs_of(jk.matmul, A, B) == ["auto"]


def test_plans_follow():
    def planned():
        return [jk.plan_sgemm(n, n, n, device="h200").algorithm for n in (128, 4096)]

    assert planned() == ["pipelined", "tensor"]
    for rung in ("pipelined", "tensor"):
        with jk.default_algorithm(rung):
            assert planned() == [rung, rung]


def test_a_jitted_function_is_traced_anew():
    traced = []

    @jax.jit
    def function(a, b):
        traced.append(1)
        return jk.matmul(a, b)

    function(A, B)
    with jk.default_algorithm("pipelined"):
        function(A, B)
        function(A, B)
    function(A, B)
    assert len(traced) == 2


def test_a_block_belongs_to_its_thread():
    with jk.default_algorithm("naive"), futures.ThreadPoolExecutor() as pool:
        assert pool.submit(rungs_of, jk.matmul, A, B).result() == ["auto"]


SHOWN = """
import jax, numpy as np, jaxkernels as jk
print(jax.make_jaxpr(jk.matmul)(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)))
"""


def test_the_environment_decides_outside_of_blocks():
    for value, expected in (("pipelined", "pipelined"), ("", "auto")):
        printed, _ = run_python("-c", SHOWN, JAXKERNELS_ALGORITHM=value, JAX_PLATFORMS="cpu")
        assert f"algorithm='{expected}'" in printed


def test_errors():
    with pytest.raises(ValueError, match="algorithm must be None or one of"):
        jk.default_algorithm("fastest")
    environment = {"JAXKERNELS_ALGORITHM": "fastest", "JAX_PLATFORMS": "cpu"}
    _, said = run_python("-c", "import jaxkernels", expect=1, **environment)
    assert "JAXKERNELS_ALGORITHM must be one of naive, " in said
