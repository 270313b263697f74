"""Plans and device limits are values: equal ones have equal hashes, copies and pickles are equal."""

import copy
import functools
import pickle
import re

import pytest
from programs import ROOT

import jaxkernels as jk
from jaxkernels import _cpu
from jaxkernels._core import devices

MAKERS = {
    "DeviceLimits": lambda: jk.DeviceLimits(
        name="gpu",
        sm_count=7,
        smem_per_block=99 * 1024,
        smem_per_sm=100 * 1024,
        threads_per_sm=1536,
        blocks_per_sm=16,
        registers_per_sm=65536,
        compute_capability=89,
        compiled_for=80,
    ),
    "SoftmaxPlan": lambda: jk.plan_softmax((4096, 50257), "bfloat16", device="h200"),
    "SoftmaxPlan of a part": lambda: _cpu.plan_softmax(
        8, 4096, "float32", "softmax_fwd", _cpu.named_devices()["h200"], "auto", "statistics"
    ),
    "SgemmPlan": lambda: jk.plan_sgemm(64, 4096, 4096, trans_b=True, device="h200"),
    "SgemmPlan of a rung": lambda: jk.plan_sgemm(64, 64, 64, algorithm="naive", device="a100"),
}
values = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.mark.smoke
@values
def test_equal_values_and_copies_are_equal(make):
    value = make()
    copies = [make(), copy.copy(value), copy.deepcopy(value), copy.deepcopy([value])[0]]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copies.append(pickle.loads(pickle.dumps(value, protocol)))
    for made in copies:
        assert type(made) is type(value)
        assert made is not value
        assert made == value
        assert hash(made) == hash(value)
        assert repr(made) == repr(value)


def changed(field):
    if isinstance(field, bool):
        return not field
    return f"{field}x" if isinstance(field, str) else field + (1 if field <= 0 else -1)


@values
def test_no_field_is_left_out(make):
    """Values that differ in one field alone differ, and every field survives."""
    value = make()
    state = value.__getstate__()
    assert len(state) >= sum(isinstance(x, property) for x in vars(type(value)).values())
    for index, field in enumerate(state):
        other = type(value).__new__(type(value))
        other.__setstate__((*state[:index], changed(field), *state[index + 1 :]))
        assert other != value, index
        assert hash(other) != hash(value), index
        assert other.__getstate__()[index] == changed(field)
    with pytest.raises(ValueError, match="another version of jaxkernels"):
        type(value).__new__(type(value)).__setstate__(state[:-1])


@pytest.mark.smoke
@values
def test_texts_are_made_of_the_fields(make):
    value = make()
    kind, given = re.fullmatch(r"(\w+)\((.*)\)", repr(value)).groups()
    assert kind == type(value).__name__
    fields = dict(field.split("=") for field in given.split(", "))
    assert len(fields) >= 9
    for name, text in fields.items():
        assert text == repr(getattr(value, name)), name


SHAPE = (4096, 1024)
ATTENTION = (4, 2048, 16, 64)


def of_rows(shape, dtype="float32", **options):
    return functools.partial(jk.plan_softmax, shape, dtype, device="h200", **options)


SENTENCES = [
    (of_rows(SHAPE), "warp tier: 32 lanes a row, 4 rows a block, one read"),
    (of_rows((4096, 7)), "warp tier: 1 lane a row, 128 rows a block, one read"),
    (
        of_rows((4096, 4096), dtype="bfloat16"),
        "block tier: 64 threads a row, kept in registers, one read",
    ),
    (
        of_rows((4096, 131072), tier="cluster"),
        r"cluster tier: \d+ blocks of \d+ threads a row, kept in shared memory, one read",
    ),
    (
        of_rows(SHAPE, tier="block_uncached"),
        r"block_uncached tier: \d+ threads a row, up to two reads",
    ),
    (
        of_rows((4, 1 << 22)),
        r'block_uncached tier: \d+ threads a row, up to two reads; with implementation="ffi" only, else XLA',
    ),
    (
        functools.partial(jk.plan_sgemm, (64, 4096), (4096, 4096), device="h200"),
        "pipelined rung: 1 x 64 tiles of 64 x 64, 256 blocks of 256 threads, k split into 4",
    ),
    (
        functools.partial(jk.plan_linear_cross_entropy, (32768, 2560), (2560, 128256), "bfloat16"),
        "8 chunks of 4096 rows: 3767511040 bytes beyond operands and results",
    ),
    (
        functools.partial(jk.plan_attention, ATTENTION, ATTENTION, "float32", device="h200"),
        "ffi_flash attention: our flash kernels keep no scores in memory",
    ),
]


@pytest.mark.parametrize(("make", "sentence"), SENTENCES)
def test_a_printed_plan_begins_with_a_sentence(make, sentence):
    plan = make()
    said, fields = str(plan).split("\n")
    assert re.fullmatch(sentence, said)
    assert fields == repr(plan)


def test_plans_of_shapes_are_those_of_sizes():
    of = {"device": "h200"}
    for flags in ({}, {"trans_a": True}, {"trans_b": True}):
        a = (2, 300, 64) if "trans_a" in flags else (2, 64, 300)
        b = (2, 50, 300) if "trans_b" in flags else (2, 300, 50)
        assert jk.plan_sgemm(a, b, **flags, **of) == jk.plan_sgemm(
            64, 50, 300, batch=2, **flags, **of
        )
    shared = jk.plan_sgemm((8, 4, 64, 300), (300, 50), **of)
    assert shared == jk.plan_sgemm((8, 4, 64, 300), (1, 1, 300, 50), **of)
    sizes = (32768, 2560, 50257, "float32")
    for trans_w, w in ((False, (2560, 50257)), (True, (50257, 2560))):
        flags = {"trans_w": trans_w, **of}
        plan = jk.plan_linear_cross_entropy((8, 4096, 2560), w, "float32", **flags)
        assert plan == jk.plan_linear_cross_entropy(*sizes, **flags)
    smaller = jk.plan_linear_cross_entropy(*sizes, device="l4")
    assert smaller.scratch_bytes != plan.scratch_bytes


def test_names_of_devices():
    page = (ROOT / "docs" / "plans.md").read_text()
    assert all(f"`{name}`" in page for name in _cpu.named_devices())
    for name, sms in (("L40S", 142), ("a10", 72), ("L4", 58), ("H20", 78), ("GH200", 132)):
        assert devices.limits_of(name).sm_count == sms  # pyright: ignore[reportArgumentType]
    assert devices.limits_of("H200") == devices.limits_of("h200")  # pyright: ignore[reportArgumentType]
    assert not MAKERS["DeviceLimits"]().has_wgmma  # unless it is said
    assert jk.plan_softmax(SHAPE, "float32", device="B200").tier == "warp"  # pyright: ignore[reportArgumentType]
