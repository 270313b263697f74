"""Softmax of sharded arrays: meshes of any form, programs around it. test_row_parts.py has its values.

Whether XLA splits a custom call or gathers its operands first cannot be seen in values, so the compiled HLO is read.
"""

import functools

import cases
import jax
import numpy as np
import pytest
from hlo import custom_calls
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxkernels as jk
from jaxkernels._rows import calls, softmax

# Results that are compared bit for bit must all come from the CPU, even if a GPU is the default.
pytestmark = pytest.mark.usefixtures("on_a_cpu")
both = pytest.mark.parametrize("function", [jk.softmax, jk.log_softmax], ids=lambda f: f.__name__)
X = cases.logits("normal", 16 * 8, 24, "float32").reshape(16, 8, 24)


def sums_of(function):
    """The sums per float32 row, forward: log_softmax counts the terms of the maximum apart."""
    return 2 if function is jk.log_softmax else 1


def test_this_file_would_notice_a_gather(line):
    """The same kernel without its rule of partitioning: XLA gathers, and the HLO shows it."""
    x = jax.device_put(X[:, 0], NamedSharding(line, P("a")))
    bare = functools.partial(calls.rows, softmax.softmax_fwd.operation)
    text = jax.jit(bare).lower(x).compile().as_text()
    assert "all-gather" in text
    assert custom_calls(text) == ["f32[16,24]"]


@pytest.mark.parametrize(
    ("function", "peer"),
    [(jk.softmax, jax.nn.softmax), (jk.logsumexp, jax.nn.logsumexp)],
    ids=["softmax", "logsumexp"],
)
def test_a_program_that_is_lowered_without_x64(function, peer, line):
    """Traced where float64 is on and lowered where it is off: neither it nor those after it go wrong."""
    function, peer = (functools.partial(f, axis=-1) for f in (function, peer))
    with jax.enable_x64(True):
        x = jax.device_put(X.astype(np.float64), NamedSharding(line, P(None, None, "a")))
        traced = jax.jit(function).trace(x)
    compiled = traced.lower().compile()
    with jax.enable_x64(True):
        want = peer(X.astype(np.float64))
        np.testing.assert_allclose(compiled(x), want, rtol=1e-14)
        np.testing.assert_allclose(jax.jit(lambda x: function(x))(x), want, rtol=1e-14)


@both
@pytest.mark.parametrize(
    ("shape", "spec", "reshaped", "local"),
    [
        ((64, 24), P("d"), (4, 16, 24), "f32[1,8,24]"),
        ((16, 64), P(None, "d"), (16, 4, 16), "f32[16,1,8]"),
        ((6, 4, 24), P(None, "d"), (24, 24), None),
    ],
    ids=str,
)
def test_a_mesh_axis_that_a_reshape_splits(function, shape, spec, reshaped, local, cpu_devices):
    """We follow XLA when it splits a mesh axis of eight devices over two dimensions, as four and two."""
    devices = cpu_devices if shape[0] != 6 else cpu_devices[:4]
    mesh = jax.make_mesh((len(devices),), ("d",), axis_types=(AxisType.Auto,), devices=devices)
    x = cases.logits("normal", shape[0], int(np.prod(shape[1:])), "float32").reshape(shape)

    def program(x):  # back in the end, as no sharding of a result has a name for such a split
        return function(x.reshape(reshaped)).reshape(shape)

    compiled = jax.jit(program).lower(jax.device_put(x, NamedSharding(mesh, spec))).compile()
    if local is not None:
        assert custom_calls(compiled.as_text())[-1] == local
        assert "all-gather" not in compiled.as_text()
    got = compiled(jax.device_put(x, NamedSharding(mesh, spec)))
    np.testing.assert_allclose(got, jax.jit(program)(x), rtol=2e-6, atol=4e-6)


@both
def test_meshes_of_other_sizes(function, cpu_devices):
    """Six devices as (3, 2), and in an order of their own."""
    mesh = jax.sharding.Mesh(np.array(cpu_devices)[[5, 0, 3, 1, 4, 2]].reshape(3, 2), ("a", "b"))
    x = X[:6]
    for spec, local in ((P("a", "b"), "f32[2,4,24]"), (P("b", None, "a"), "f32[3,8,8]")):
        sharded = jax.device_put(x, NamedSharding(mesh, spec))
        compiled = jax.jit(function).lower(sharded).compile()
        assert custom_calls(compiled.as_text())[-1] == local
        np.testing.assert_allclose(compiled(sharded), function(x), rtol=2e-6, atol=4e-6)


@both
def test_set_mesh(function, mesh):
    """A mesh that no argument brings along."""
    is_auto = mesh.axis_types[0] == AxisType.Auto
    place = jax.lax.with_sharding_constraint if is_auto else jax.sharding.reshard
    with jax.set_mesh(mesh):
        program = jax.jit(lambda x: function(place(x, P(None, None, "a"))))
        compiled = program.lower(jax.ShapeDtypeStruct(X.shape, X.dtype)).compile()
    text = compiled.as_text()
    assert custom_calls(text) == [f"f32[16,8,{1 + sums_of(function)}]", "f32[16,8,6]"]
    assert "all-gather" not in text
