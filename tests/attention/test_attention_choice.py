"""Who computes attention, without a GPU: the table, what cuDNN is refused, and plans."""

import dataclasses
import re
from types import SimpleNamespace

import flash_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkernels as jk
from jaxkernels._attention import choice, cudnn
from jaxkernels._attention.choice import Machine, Problem
from jaxkernels._attention.problem import Operands
from jaxkernels._rows.masked_kernels import Band

SHAPE = (4, 2048, 16, 64)
LARGE = Problem((4, 2048, 2048, 16, 16, 64), "bfloat16")


def plan(query=SHAPE, key=None, dtype="bfloat16", **options):
    options = {"device": "h200", "cudnn_version": 91002, **options}
    return jk.plan_attention(query, query if key is None else key, dtype, **options)


# Options that keep a call from cuDNN, and a part of the reason that is reported.
REFUSED = [
    ({"dtype": "float32", "device": "a100"}, "Hopper"),
    ({"dtype": "float32", "bias": "float64"}, "rounded to float32"),
    ({"dtype": "float32", "empty_rows": "mean"}, "give 0"),
    ({"dtype": "float32", "query": (4, 2048, 16, 129)}, "depths up to 128"),
    ({"dtype": "float32", "query": (4, 0, 16, 64)}, "nothing to compute"),
    ({"dtype": "float32", "query": (1, 512, 8, 64)}, "few scores"),
    ({"dtype": "float32", "query": (64, 1, 16, 64), "key": (64, 8192, 16, 64)}, "few queries"),
    ({"dtype": "float64"}, "not float64"),
    ({"return_residual": True}, "no residual"),
    ({"empty_rows": "mean"}, "no residual"),
    ({"bias": "float32"}, "rounded to bfloat16"),
    ({"bias": "float16"}, "rounded to bfloat16"),
    ({"local_window_size": 4}, "windows end"),
    ({"local_window_size": (4, 0), "mask": True}, "might see no key"),
    ({"local_window_size": (4, 0), "lengths": True}, "might see no key"),
    ({"query": (4, 4096, 16, 64), "key": SHAPE, "local_window_size": (4, 0)}, "might see no key"),
    ({"query": (4, 2049, 16, 64), "mask": True}, "both lengths"),
    ({"query": (4, 2048, 16, 65)}, "depth of 65"),
    ({"query": (4, 2048, 16, 264)}, "depth of 264"),
    ({"query": (4, 2048, 16, 136), "device": "a100"}, "depth of 136"),
    ({"query": (0, 2048, 16, 64)}, "nothing to compute"),
    ({"query": (4, 0, 16, 64)}, "nothing to compute"),
    ({"query": (65535, 1, 512, 64)}, "one query with one key"),
    ({"cudnn_version": 0}, "not installed"),
    ({"cudnn_version": 90100}, "90100 is older"),
]


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_what_cudnn_never_gets(options, text):
    found = plan(**options)
    assert found.implementation != "cudnn"
    assert text in found.why
    assert found.keeps_scores
    assert found.is_repeatable


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"mask": True},
        {"lengths": True},
        {"query": (4, 2049, 16, 64)},
        {"query": (4, 2048, 16, 256)},
        {"query": (4, 2048, 16, 128), "device": "a100"},
        {"query": (1, 2048, 16, 64), "key": (1, 8192, 4, 64)},
        {"query": (2048, 16, 64)},
        {"query": (65535, 1, 512, 64), "key": (65535, 2, 512, 64)},
        {"local_window_size": (4, 0)},
        {"local_window_size": 4, "is_causal": True},
        {"dtype": jnp.float16},
    ],
)
def test_what_cudnn_serves(options):
    found = plan(**options)
    assert found.implementation == "cudnn"
    assert not found.keeps_scores
    assert not found.is_repeatable


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_residual": True},
        {"bias": "bfloat16", "mask": True, "lengths": True, "local_window_size": (4, 1)},
        {"query": (384, 384, 4, 32), "bias": "float32"},
        {"query": (1, 8192, 16, 1), "key": (1, 130, 2, 1)},
    ],
)
def test_what_our_kernels_serve(options):
    for device in ("h100", "h200"):
        found = plan(dtype="float32", device=device, **options)
        assert found.implementation == "ffi_flash"
        assert not found.keeps_scores
        assert found.is_repeatable
        assert 0 < found.scratch_bytes <= 128 * 2**20


def test_what_is_small_or_leaves_the_gpu_idle_is_ours():
    assert plan(cudnn_version=0).implementation == "ffi"
    assert plan((8, 384, 8, 32)).implementation == "ffi"
    assert plan((1, 1664, 2, 128)).implementation == "ffi"  # 26 blocks
    assert plan((16, 128, 16, 64)).implementation == "ffi"
    assert plan((16, 128, 16, 128)).implementation == "cudnn"
    assert plan((16, 256, 16, 16)).implementation == "cudnn"  # 2^24 scores
    assert plan((15, 256, 16, 16)).implementation == "ffi"
    assert plan((64, 16, 32, 128), (64, 256, 32, 128)).implementation == "ffi"
    assert plan((4, 1024, 16, 64)).implementation == "cudnn"
    assert plan(bias="bfloat16").implementation == "ffi"
    assert plan(dtype="float16", mask=True).implementation == "ffi"
    # 30 and 71 million scores; 32 and 168 blocks.
    assert plan((2, 7296, 2, 128), (2, 1024, 2, 128)).implementation == "ffi"
    assert plan((4, 2624, 2, 64), (4, 6784, 2, 64)).implementation == "cudnn"


def of_capability(capability, version):
    return Machine(SimpleNamespace(compute_capability=capability), version)


def test_machines():
    assert choice.choose(LARGE, None)[0] == "ffi"
    for machine, served in (
        (flash_cases.h200(), True),
        (flash_cases.h200()._replace(cudnn=None), False),
        (of_capability(75, 91002), False),
        (of_capability(103, 91002), False),
        (of_capability(103, 91100), True),
    ):
        assert (choice.choose(LARGE, machine)[0] == "cudnn") == served, machine


def test_sizes_that_are_not_known():
    (batch,) = jax.export.symbolic_shape("batch")
    problem = dataclasses.replace(LARGE, shape=(batch, *LARGE.shape[1:]))
    assert choice.why_not_cudnn(problem, flash_cases.h200())
    wide = dataclasses.replace(problem, dtype="float32")
    assert (
        choice.choose(problem, flash_cases.h200())[0]
        == choice.choose(wide, flash_cases.h200())[0]
        == "ffi"
    )


@pytest.mark.parametrize(
    ("scale", "served"), [(0.5, True), (2, True), (-1.0, False), (0.0, False), (np.ones(()), False)]
)
def test_scales(monkeypatch, scale, served):
    flash_cases.take_flash(monkeypatch)
    monkeypatch.setattr(choice, "this_machine", flash_cases.h200)
    x = jnp.zeros((1, 64, 2, 64), jnp.bfloat16)
    call = choice.flash_call(Operands(x, x, x), scale, Band(from_end=False))
    assert (call is not None) == served


def test_this_machine():
    assert (choice.this_machine() is not None) == (jax.default_backend() == "gpu")
    assert (cudnn.version() or 90000) >= 90000


def test_plans_are_values_that_say_why():
    assert plan() == plan() != plan(is_causal=True, cudnn_version=0)
    assert hash(plan()) == hash(plan())
    assert re.search("AttentionPlan.*cudnn.*flash.*h200.*91002", repr(plan()))
