"""The recipes of `examples/` show what they say; that they run is tested with the other examples."""

import functools
import math

import numpy as np
import pytest
from example_modules import example

import jaxkernels as jk


@pytest.fixture(autouse=True)
def what_recipes_import():
    for module in ("equinox", "flax", "optax", "rich"):
        pytest.importorskip(module)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_transformer_block_is_flaxs(dtype):
    """With equal bits of dropout, for otherwise the losses would differ."""
    arguments = ["--length", "16", "--dropout", "0.3", "--dtypes", dtype]
    findings = example("flax_transformer").main(arguments)
    assert [finding.name for finding in findings] == ["flax.linen", "flax.nnx"]
    for finding in findings:
        assert finding.is_equal, finding
        wanted = {"masked_softmax_fwd", "masked_softmax_grad", "cross_entropy_fwd_grad"}
        assert wanted == set(finding.operations)
        # Seven dense layers and two products of attention, each with two in the gradient.
        assert finding.products == (27 if dtype == "float32" else 0)


@pytest.mark.parametrize("mistake", ["mask", "dropout_rng"])
def test_a_transformer_block_notices(mistake, monkeypatch):
    import jax

    import jaxkernels.flax

    right = jaxkernels.flax.dot_product_attention
    wrong_values = {"mask": None, "dropout_rng": jax.random.key(99)}

    @functools.wraps(right)
    def wrong(*arguments, **options):
        return right(*arguments, **{**options, mistake: wrong_values[mistake]})

    monkeypatch.setattr(jaxkernels.flax, "dot_product_attention", wrong)
    findings = example("flax_transformer").main(["--length", "16", "--dropout", "0.3"])
    assert not any(finding.is_equal for finding in findings)


def test_equinox_modules_run_our_softmax():
    patched, own = example("equinox_module").main(["--length", "16"])
    assert patched.is_equal, patched
    assert own.is_equal, own
    assert patched.operations == ["softmax_fwd", "softmax_grad"]
    assert own.operations == ["masked_softmax_fwd", "masked_softmax_grad"]


def test_a_gaussian_process_needs_float32():
    ours, tf32 = example("gaussian_process").main(["--points", "200", "--steps", "30"])
    assert ours.steps == 30
    assert ours.likelihood_error < 1e-3
    assert ours.noise_needed <= 1e-4
    assert ours.error < 0.2  # of a function between -3 and 3
    assert ours.error / 3 < ours.deviation < 3 * ours.error
    # TF32's own fit ends in NaN, or keeps to more noise than there is.
    assert tf32.noise_needed > 100 * ours.noise_needed
    assert math.isnan(tf32.likelihood_error)
    assert tf32.eigenvalue < -1e-4
    assert tf32.deviation > 1.5 * ours.deviation
    assert tf32.kernel_error > 100 * ours.kernel_error


def test_a_vocabulary_in_parallel(cpu_devices):
    rows, vocabulary = 32, 512
    arguments = ["--rows", str(rows), "--vocabulary", str(vocabulary)]
    findings = {f.name: f for f in example("vocabulary_parallel").main(arguments)}
    for finding in findings.values():
        assert finding.is_equal, finding
    statistics = 4 * 4 * rows
    assert findings["cross_entropy"].sent == {"all-reduce": statistics}
    assert findings["cross_entropy, gathered"].sent == {"all-gather": 4 * rows * vocabulary}
    linear = findings["linear_cross_entropy"]
    assert linear.sent == {"all-reduce": statistics + 4 * rows * 64}
    assert tuple(linear.specs[1]) == (None, "vocabulary")


def test_a_vocabulary_in_parallel_notices(cpu_devices, monkeypatch):
    """The classes of the last device are left out."""
    right = jk.cross_entropy

    def wrong(logits, labels, **options):
        return right(logits, labels, where=np.arange(512) < 448, **options)

    monkeypatch.setattr(jk, "cross_entropy", wrong)
    findings = example("vocabulary_parallel").main(["--rows", "32", "--vocabulary", "512"])
    assert not findings[0].is_equal


def test_what_was_exported_is_served(tmp_path):
    result = example("serve_exported").main(["--folder", str(tmp_path)])
    assert result.is_equal, result
    assert set(result.differences) == {1, 3, 4, 20, 32}
    assert result.platforms == ("cpu", "cuda")
    # Attention's softmax and the last one, for each platform that has kernels.
    assert result.kernels >= 2
