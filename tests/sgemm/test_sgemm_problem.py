"""The canonical form of a product (ffi/sgemm/problem.h): which batch dimensions are left, and where members lie."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from jaxkernels._core import registry


def problem(a_shape, b_shape, trans_a=False, trans_b=False):
    """(m, n, k, batch dimensions as (size, stride of a, stride of b))."""
    return registry.cpu_module.sgemm_problem(a_shape, b_shape, trans_a, trans_b)


def batch_of(a_batch, b_batch):
    """The batch dimensions of matrices too tall to be folded."""
    m, n, k, batch = problem((*a_batch, 64, 3), (*b_batch, 3, 5))
    assert (m, n, k) == (64, 5, 3)
    return batch


@pytest.mark.parametrize(
    ("a_batch", "b_batch", "expected"),
    [
        # Equal ones merge; neighbours that one operand lacks are one dimension as well.
        ((2, 3, 4), (2, 3, 4), [(24, 1, 1)]),
        ((2, 3), (1, 1), [(6, 1, 0)]),
        ((1, 1), (2, 3), [(6, 0, 1)]),
        # If the operands lack dimensions by turns, or b lacks one of two dimensions of a, nothing merges.
        ((2, 1), (1, 3), [(2, 1, 0), (3, 0, 1)]),
        ((1, 2), (3, 1), [(3, 0, 1), (2, 1, 0)]),
        ((2, 3), (2, 1), [(2, 3, 1), (3, 1, 0)]),
        ((2, 3), (1, 3), [(2, 3, 0), (3, 1, 1)]),
        # Runs of equal kind merge, others do not.
        ((2, 3, 4, 5), (2, 3, 1, 1), [(6, 20, 1), (20, 1, 0)]),
        # A size of 1 in both is no dimension, and its neighbours merge.
        ((1, 1), (1, 1), []),
        ((2, 1, 3), (2, 1, 3), [(6, 1, 1)]),
        ((2, 1, 3), (1, 1, 1), [(6, 1, 0)]),
    ],
)
def test_batch_dimensions(a_batch, b_batch, expected):
    assert batch_of(a_batch, b_batch) == expected


def test_rows_of_a_shared_b_fold_below_64():
    def shared(m, trans_a=False, trans_b=False):
        a = (10, 3, m) if trans_a else (10, m, 3)
        return problem(a, (1, 5, 3) if trans_b else (1, 3, 5), trans_a, trans_b)

    assert shared(1) == (10, 5, 3, [])
    assert shared(63) == shared(63, trans_b=True) == (630, 5, 3, [])
    assert shared(64) == shared(64, trans_b=True) == (64, 5, 3, [(10, 1, 0)])
    # The rows of members of a transposed a do not lie side by side.
    assert shared(63, trans_a=True) == (63, 5, 3, [(10, 1, 0)])


def test_what_else_does_not_fold():
    assert problem((10, 2, 3), (10, 3, 5)) == (2, 5, 3, [(10, 1, 1)])
    assert problem((1, 2, 3), (10, 3, 5)) == (2, 5, 3, [(10, 0, 1)])
    assert problem((4, 6, 2, 3), (4, 1, 3, 5)) == (2, 5, 3, [(4, 6, 1), (6, 1, 0)])
    assert problem((4, 6, 2, 3), (1, 1, 3, 5)) == (48, 5, 3, [])  # one dimension once merged


def test_four_dimensions_by_turns_are_served_and_five_are_not():
    four = ((2, 1, 2, 1), (1, 2, 1, 2))
    assert batch_of(*four) == [(2, 2, 0), (2, 0, 2), (2, 1, 0), (2, 0, 1)]
    message = (
        r"batch dimensions that broadcast by turns more than 4 times are not served; "
        r"a has shape \(2, 1, 2, 1, 2, 64, 3\), b has shape \(1, 2, 1, 2, 1, 3, 5\)"
    )
    with pytest.raises(ValueError, match=message):
        batch_of((2, 1, 2, 1, 2), (1, 2, 1, 2, 1))


@st.composite
def broadcasting(draw):
    """Up to four batch dimensions of two operands; in each, one of the two may have size 1."""
    dims = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=4))
    a_batch = [1 if lacks == "a" else size for size, lacks in dims]
    b_batch = [1 if lacks == "b" else size for size, lacks in dims]
    return tuple(a_batch), tuple(b_batch)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(broadcasting(), st.sampled_from([3, 64]), st.booleans(), st.booleans())
def test_members_are_found_where_they_lie(batches, m, trans_a, trans_b):
    """Each row of the result gets the row of A and the matrix of B that NumPy's broadcasting gives it."""
    a_batch, b_batch = batches
    a_shape = (*a_batch, 2, m) if trans_a else (*a_batch, m, 2)
    b_shape = (*b_batch, 5, 2) if trans_b else (*b_batch, 2, 5)
    rows, _, _, dims = problem(a_shape, b_shape, trans_a, trans_b)
    assert all(size != 1 for size, _, _ in dims)
    found = []
    for index in np.ndindex(*(size for size, _, _ in dims)):
        of_a, of_b = (
            sum(i * dim[operand] for i, dim in zip(index, dims, strict=True)) for operand in (1, 2)
        )
        found += [(of_a * rows + row, of_b) for row in range(rows)]
    shape = np.broadcast_shapes(a_batch, b_batch)
    members_of_a = np.arange(np.prod(a_batch, dtype=int)).reshape(a_batch)
    members_of_b = np.arange(np.prod(b_batch, dtype=int)).reshape(b_batch)
    pairs = zip(
        np.broadcast_to(members_of_a, shape).flat,
        np.broadcast_to(members_of_b, shape).flat,
        strict=True,
    )
    assert found == [(of_a * m + row, of_b) for of_a, of_b in pairs for row in range(m)]
