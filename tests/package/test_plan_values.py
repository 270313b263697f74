"""Plans and device limits are values: equal ones have equal hashes, copies and pickles are equal."""

import copy
import pickle
import re

import pytest

import jaxkernels as jk
from jaxkernels import _cpu

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


@values
def test_equal_values_have_equal_hashes(make):
    one, other = make(), make()
    assert one is not other
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1
    assert {one: "found"}[other] == "found"


@values
def test_copies_are_equal(make):
    value = make()
    copies = [copy.copy(value), copy.deepcopy(value), copy.deepcopy([value])[0]]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copies.append(pickle.loads(pickle.dumps(value, protocol)))
    for made in copies:
        assert type(made) is type(value)
        assert made is not value
        assert made == value
        assert hash(made) == hash(value)
        assert repr(made) == repr(value)


def changed(field):
    """Another value of a field."""
    if isinstance(field, bool):
        return not field
    return field + (
        1 if isinstance(field, int) and field <= 0 else -1 if isinstance(field, int) else "x"
    )


@values
def test_no_field_is_left_out(make):
    """Values that differ in one field alone differ, and every field survives."""
    value = make()
    state = value.__getstate__()
    assert len(state) >= len([name for name in dir(type(value)) if is_field(type(value), name)])
    for index, field in enumerate(state):
        other = type(value).__new__(type(value))
        other.__setstate__((*state[:index], changed(field), *state[index + 1 :]))
        assert other != value, index
        assert hash(other) != hash(value), index
        assert other.__getstate__() != state, index
        assert other.__getstate__()[index] == changed(field)


def is_field(kind, name):
    return isinstance(getattr(kind, name), property)


@values
def test_a_pickle_of_other_fields_is_refused(make):
    value = make()
    empty = type(value).__new__(type(value))
    with pytest.raises(ValueError, match="another version of jaxkernels"):
        empty.__setstate__(value.__getstate__()[:-1])


def test_values_of_different_classes_differ():
    found = {make() for make in MAKERS.values()}
    assert len(found) == len(MAKERS)
    assert MAKERS["SgemmPlan"]() != MAKERS["SoftmaxPlan"]()


@values
def test_texts_are_made_of_the_fields(make):
    value = make()
    kind, given = re.fullmatch(r"(\w+)\((.*)\)", repr(value)).groups()
    assert kind == type(value).__name__
    fields = dict(field.split("=") for field in given.split(", "))
    assert len(fields) >= 9
    for name, text in fields.items():
        assert text == repr(getattr(value, name)), name
