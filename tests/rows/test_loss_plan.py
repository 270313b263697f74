"""The launch plans of losses over vocabularies, without a GPU."""

import pytest

import jaxkernels as jk


def plan(rows, cols, dtype, operation="cross_entropy_fwd_grad"):
    return jk.plan_softmax((rows, cols), dtype, operation=operation, device="h200")


@pytest.mark.parametrize(
    ("dtype", "cols", "blocks", "blocks_per_sm", "halves"),
    [
        ("bfloat16", 32000, 1, 3, False),
        ("bfloat16", 50257, 2, 4, False),
        ("bfloat16", 128256, 4, 3, True),
        ("bfloat16", 262144, 8, 3, True),
        ("float32", 32000, 2, 3, False),
        ("float32", 50257, 2, 2, True),
        ("float32", 128256, 8, 3, True),
        ("float32", 262144, 16, 3, True),
    ],
)
def test_blocks_of_a_row(dtype, cols, blocks, blocks_per_sm, halves):
    """Those that were measured, whatever the number of rows: the bits of a row depend on them."""
    p = plan(2**30 // cols, cols, dtype)
    assert (p.cluster_blocks, p.blocks_per_sm, p.halves) == (blocks, blocks_per_sm, halves)
    assert {plan(rows, cols, dtype).cluster_blocks for rows in (1, 8, 64, 1000)} == {blocks}


@pytest.mark.parametrize("operation", ["cross_entropy_fwd", "logsumexp_fwd"])
def test_few_rows_have_a_warp_for_each_leaf(operation):
    """While all blocks run at once; the leaves are those of many rows."""
    leaves = 126  # of 256 packs each
    for rows in (1, 8):
        p = plan(rows, 128256, "float32", operation)
        assert (p.cluster_blocks, p.block_threads, p.leaf_turns) == (8, 16 * 32, 1)
        assert p.block_threads // 32 * p.cluster_blocks >= leaves
    p = plan(64, 128256, "float32", operation)
    assert (p.cluster_blocks, p.block_threads, p.leaf_turns) == (4, 8 * 32, 1)
    p = plan(1, 128256, "bfloat16", operation)
    assert (p.cluster_blocks, p.block_threads, p.leaf_turns) == (8, 8 * 32, 1)
