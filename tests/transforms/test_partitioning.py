"""Arrays sharded over devices: what a sharding costs, and that results stay right.

Rows need no communication. If columns are sharded, a maximum and a few sums of each row cross the
network. Whether XLA splits a custom call or gathers its operands first cannot be seen in values, so
the compiled HLO is read.
"""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ON_GPU
from hlo import collectives, custom_calls, reduced_shapes
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from public_functions import FUNCTIONS
from transformations import pulled

pytestmark = pytest.mark.usefixtures("on_a_cpu", "exact_products", "small_chunks")
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
SIZES = {"b": 8, "r": 16, "c": 24, "h": 4, "q": 16, "k": 24, "d": 8, "m": 8, "n": 16}


@dataclasses.dataclass(frozen=True)
class Shardings:
    """Shardings of the dimensions of a function's operands, and what they cost.

    Attributes:
        result: dimensions of each result.
        rows: mesh axes of dimensions that need no communication.
        columns: mesh axes of dimensions that include the reduced one.
        kernels: how many each program runs on whole rows. Programs without a number are left out.
        sums: how many numbers of a row each all-reduce of each program has.
    """

    result: str
    rows: tuple[dict, ...]
    columns: tuple[dict, ...] = ()
    kernels: tuple[int, ...] = (1, 2, 2, 1)
    sums: tuple[tuple[int, ...], ...] = ()


ROWS = ({"b": "a"}, {"b": ("a", "b")}, {"b": "a", "r": "b"}, {"r": "b"})
COLUMNS = ({"c": "a"}, {"b": "a", "c": "b"}, {"r": "b", "c": "a"}, {"c": ("a", "b")})
MATRICES = (
    *({"b": "a"}, {"b": "a", "h": "b"}, {"b": ("a", "b")}, {"h": "b"}),
    *({"b": "a", "q": "b"}, {"h": "b", "q": "a"}, {"q": ("a", "b")}),
)
KEYS = ({"k": "a"}, {"b": "a", "k": "b"}, {"q": "a", "k": "b"}, {"h": "b", "k": "a"})
TWO, THREE = (1, 1), (1, 1, 1)
SHARDED = {
    "softmax": Shardings("brc", ROWS, COLUMNS, sums=(TWO, THREE, THREE, TWO)),
    "softmax-where": Shardings("brc", ROWS[:3]),
    "log_softmax": Shardings(
        "brc", ROWS, COLUMNS, (1, 2, 1, 1), ((1, 2), (1, 2, 1), (1, 2, 1), (1, 2))
    ),
    "logsumexp": Shardings("br", ROWS, COLUMNS, (1, 2, 0, 1), (TWO, (*TWO, *TWO), THREE, TWO)),
    "rms_norm": Shardings("brc", ROWS, COLUMNS, (1, 2, 0, 1), ((1,), (1, 2), TWO, (1,))),
    "masked": Shardings("bhqk", MATRICES, KEYS, sums=(TWO, THREE, THREE, TWO)),
    "masked-open": Shardings("bhqk", MATRICES, KEYS, sums=(TWO, THREE, THREE, TWO)),
    # JAX 0.12 has no vmap over an explicit axis of what puts zeros behind such an array.
    "cross_entropy-none": Shardings("br", ROWS, COLUMNS, (1, 2, 1)),
    "cross_entropy": Shardings("br", ROWS[1:3], COLUMNS[1:2], (1, 2, 1, 1)),
    "cross_entropy-mean": Shardings("", ROWS[1:3], COLUMNS[1:2], (1, 1, 1, 1)),
    "token_log_probs": Shardings("br", ROWS[1:3], COLUMNS[1:2], (1, 2, 0, 1)),
    "token_log_probs-several": Shardings("br", ROWS[1:3], COLUMNS[1:2], (1, 2, 0, 1)),
    "softmax_kl_divergence": Shardings("br", ROWS[1:3], COLUMNS[1:2], (2, 2, 2)),
}


def mapped(function):
    """vmap over the first dimension of the first operand."""
    first = function.dims[0][0]
    axes = [0 if dims[:1] == first else None for dims in function.dims]

    def program(*operands):
        given = [
            x[0] if dims.startswith("1") else x
            for x, dims in zip(operands, function.dims, strict=True)
        ]
        return jax.vmap(function.ours, axes)(*given)

    return program


def programs_of(function):
    """The call, the gradient of the first operand, its tangent, and the call under vmap."""
    f = function.ours

    def gradient(x, *others):
        y, pull = jax.vjp(lambda x: f(x, *others), x)
        return pull(jax.tree.map(jnp.cos, y))

    def tangent(x, *others):
        return jax.jvp(lambda x: f(x, *others), (x,), (jnp.sin(x),))[1]

    return f, gradient, tangent, mapped(function)


def draw(name, layout, mesh):
    """Operands of each program, so that no two run the same kernel, and the same on the mesh."""
    function = FUNCTIONS[name]
    whole = [function.draw(seed=seed, **SIZES) for seed in range(4)]
    specs = [P(*(layout.get(dim) for dim in dims)) for dims in function.dims]
    placed = [
        [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(xs, specs, strict=True)]
        for xs in whole
    ]
    return whole, placed


@functools.cache
def program_of(name):
    """All programs as one: compiling is what costs."""

    def run(operands):
        count = len(SHARDED[name].kernels)
        some = programs_of(FUNCTIONS[name])[:count]
        return [program(*xs) for program, xs in zip(some, operands[:count], strict=True)]

    return run


@functools.cache
def on_one_device(name):
    whole = [FUNCTIONS[name].draw(seed=seed, **SIZES) for seed in range(4)]
    return jax.device_get(jax.jit(program_of(name))(whole))


def local_rows(name, layout, mesh):
    """Sizes of the rows of the first operand that one device has."""
    dims = FUNCTIONS[name].dims[0][:-1]
    sharding = NamedSharding(mesh, P(*map(layout.get, dims)))
    return sharding.shard_shape(tuple(SIZES[dim] for dim in dims))


def shapes_of_calls(text):
    return [tuple(map(int, call[4:-1].split(","))) for call in custom_calls(text)]


def check_results(got, name, layout, mesh, atol):
    """Values are those of one device, and results are sharded as their dimensions are."""
    of_operand = FUNCTIONS[name].dims[0]
    dims = SHARDED[name].result
    of_results = (dims, of_operand, dims, dims or of_operand[0])[: len(got)]
    for part, want, of in zip(got, on_one_device(name), of_results, strict=True):
        expected = NamedSharding(mesh, P(*map(layout.get, of)))
        for a, b in zip(jax.tree.leaves(part), jax.tree.leaves(want), strict=True):
            assert a.sharding.is_equivalent_to(expected, a.ndim)
            np.testing.assert_allclose(a, b, rtol=atol, atol=atol)


def cases(kind):
    return pytest.mark.parametrize(
        ("name", "layout"),
        [
            pytest.param(name, layout, id=f"{name}-{layout}")
            for name, of in SHARDED.items()
            for layout in getattr(of, kind)
        ],
    )


@pytest.mark.half_on_a_cpu
@cases("rows")
def test_sharded_rows_run_without_collectives(name, layout, mesh):
    """Every device runs the kernels on its own rows; for a mean, devices sum a few numbers."""
    _, placed = draw(name, layout, mesh)
    compiled = jax.jit(program_of(name)).lower(placed).compile()
    text = compiled.as_text()
    if SHARDED[name].result:
        assert not collectives(text), text
    else:
        assert set(collectives(text)) == {"all-reduce"}, text
        assert all(len(shape) < 2 for shape in reduced_shapes(text)), text
    calls = shapes_of_calls(text)
    assert len(calls) == sum(SHARDED[name].kernels), text
    assert {shape[:-1] for shape in calls} == {local_rows(name, layout, mesh)}, text
    # XLA sums losses, divergences and the tangents of these, and caps the logits of several ids.
    by_xla = ("softmax_kl_divergence", "log_softmax", "logsumexp", "rms_norm")
    by_xla += ("token_log_probs-several",)
    atol = 4e-6 if not SHARDED[name].result or name in by_xla or "q" in layout else 0
    check_results(compiled(placed), name, layout, mesh, atol)


@pytest.mark.half_on_a_cpu
@cases("columns")
def test_sharded_columns_are_distributed(name, layout, mesh):
    """A maximum and the sums of each row cross the network, and nothing else."""
    _, placed = draw(name, layout, mesh)
    compiled = jax.jit(program_of(name)).lower(placed).compile()
    text = compiled.as_text()
    rows = local_rows(name, layout, mesh)
    gathered = set(reduced_shapes(text, "all-gather"))
    if name == "softmax_kl_divergence":  # XLA gathers the sums of both devices, and adds them
        assert gathered == {(*rows, 2)}, text
    else:
        assert not gathered, text
    assert set(collectives(text)) <= {"all-reduce", "all-gather"}, text
    reduced = reduced_shapes(text)
    if SHARDED[name].sums:
        sums = [n for of_program in SHARDED[name].sums for n in of_program]
        assert sorted(reduced) == sorted(rows if n == 1 else (*rows, n) for n in sums), text
    else:  # of cross entropy three or six sums, of a mean two numbers, and one for each further id
        more = SIZES["k"] if name.endswith("several") else 1
        assert set(reduced) <= {rows, (*rows, 2 + more), (*rows, 5 + more), (*rows, more), ()}, text
    check_results(compiled(placed), name, layout, mesh, 4e-6)


@pytest.mark.half_on_a_cpu
@pytest.mark.parametrize("name", ["softmax-axes", "log_softmax-axis", "logsumexp-where"])
@pytest.mark.parametrize(
    "layout", [{"b": "a", "r": "b"}, {"c": "b"}, {"r": "a", "c": "b"}], ids=str
)
def test_other_axes(name, layout, mesh):
    """Any axes over any sharding give the values of one device, and an explicit sharding is jax.nn's."""
    whole, placed = draw(name, layout, mesh)
    call, gradient, _, _ = programs_of(FUNCTIONS[name])
    program = jax.jit(lambda xs: [call(*xs), gradient(*xs)])
    if mesh.axis_types[0] == AxisType.Explicit:
        types = [jax.eval_shape(f, *placed[0]) for f in (call, FUNCTIONS[name].peer)]
        assert types[0].sharding == types[1].sharding
    closer = functools.partial(np.testing.assert_allclose, rtol=4e-6, atol=4e-6)
    jax.tree.map(closer, program(placed[0]), program(whole[0]))


ROW_FUNCTIONS = ("softmax", "log_softmax", "logsumexp", "rms_norm")
LOSSES = ("cross_entropy", "cross_entropy-mean", "linear_cross_entropy")
UNEVEN = {
    **dict.fromkeys(ROW_FUNCTIONS + LOSSES, ({"b": "b", "c": "a"}, {"b": "a", "r": "b"})),
    "masked": ({"b": "b", "k": "a"}, {"b": "a", "q": "b"}),
    "matmul": ({"m": "a", "d": "b"}, {"d": "a", "n": "b"}),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_sizes_that_do_not_divide(name, grid):
    """Padding takes part in no sum: such columns are gathered, and rows are padded."""
    function = FUNCTIONS[name]
    moving, xs = function.of_moving(
        function.ours, function.draw(**{d: n - 3 for d, n in SIZES.items()})
    )
    dims = [function.dims[i] for i in function.moving]

    def program(xs, layout):
        if layout is not None:
            specs = [NamedSharding(grid, P(*map(layout.get, of))) for of in dims]
            xs = jax.lax.with_sharding_constraint(xs, specs)
        return pulled(moving, *xs)

    want, *found = jax.jit(lambda xs: [program(xs, of) for of in (None, *UNEVEN[name])])(xs)
    for got in found:
        jax.tree.map(close, got, want)


@contextlib.contextmanager
def older_partitioner():
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


LAYOUTS = {
    "linear_cross_entropy-mean": ({"b": "a"}, {"c": "b"}, {"b": "a", "c": "b"}),
    "matmul": ({"m": "a"}, {"d": "a"}, {"m": "b", "n": "a"}),
    **{
        n: (of.rows[0], of.rows[1], *of.columns[:1])
        for n, of in SHARDED.items()
        if n != "softmax-where"
    },
}
if not ON_GPU:  # every other function has its rows over both axes
    for number, name in enumerate(n for n in SHARDED if n in LAYOUTS):
        first, second, *columns = LAYOUTS[name]
        LAYOUTS[name] = (second if number % 2 else first, *columns)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_older_partitioner(name, grid):
    """GSPMD gives the same; it splits the rows of one operand."""
    function = FUNCTIONS[name]
    call, gradient, _, _ = programs_of(function)
    program = lambda xs: [call(*xs[0]), gradient(*xs[1])]  # noqa: E731
    want = jax.jit(program)(draw(name, {}, grid)[0])
    for layout in LAYOUTS[name]:
        _, placed = draw(name, layout, grid)
        with older_partitioner():
            compiled = jax.jit(lambda xs: program(xs)).lower(placed).compile()
        jax.tree.map(close, compiled(placed), want)
        if len(function.operands) == 1 and layout in SHARDED[name].rows:
            assert not collectives(compiled.as_text())
            rows = {shape[:-1] for shape in shapes_of_calls(compiled.as_text())}
            assert rows == {local_rows(name, layout, grid)}
