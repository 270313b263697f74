"""Programs that an earlier version exported load and run: the policy that `export_checks` states.

A failure here means that programs of users no longer run. The targets that these files call must stay: a target with
other attributes gets another name.
"""

import re

import exported_programs
import jax
import numpy as np
import pytest
from programs import ROOT

from jaxkernels._core import devices, registry

FILES = sorted(exported_programs.FOLDER.glob("*.bin"))
files = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def load(path):
    return jax.export.deserialize(bytearray(path.read_bytes()))


def name_of(path):
    return path.stem.partition("_")[2]


def test_each_program_is_kept():
    assert {name_of(path) for path in FILES} == set(exported_programs.PROGRAMS)


@files
def test_it_runs_and_is_right(path):
    operands, program = exported_programs.operands()[name_of(path)], load(path)
    platform = jax.default_backend().replace("gpu", "cuda")
    if platform not in program.platforms or (
        name_of(path) == "attention" and devices.limits_of(None).compute_capability != 90
    ):
        pytest.skip("the program is for another platform")
    got = program.call(*operands)
    want = exported_programs.truth(name_of(path), *operands)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-6), got, want)


def attributes_read():
    """The names of the attributes that each target reads, from the sources: a CPU runs no product."""
    attribute = re.compile(r'Attr<\S+>\("(\w+)"\)')
    whole, parts = (ROOT / "ffi" / "rows" / "read_call.h").read_text().split("BindStatistics", 1)
    product = (ROOT / "ffi" / "sgemm" / "handlers.cc").read_text()
    attention = (ROOT / "ffi" / "attention" / "handlers.cc").read_text()
    return {
        **{key: set(attribute.findall(attention)) for key in registry.ATTENTION_TARGETS},
        registry.ROWS_TARGET: set(attribute.findall(whole)),
        registry.STATISTICS_TARGET: set(attribute.findall(parts)),
        registry.FINISH_TARGET: set(attribute.findall(parts)),
        registry.SGEMM_TARGET: set(attribute.findall(product)),
    }


def test_their_attributes_are_those_that_the_targets_read():
    text = "\n".join(load(path).mlir_module() for path in FILES)
    calls = re.findall(r"@(jaxkernels_\w+)\(.*?\) \{mhlo\.backend_config = \{(.*?)\}", text)
    assert {target for target, _ in calls} == set(registry.TARGETS["cuda"])
    for target, attributes in calls:
        names = set(re.findall(r"(\w+) = ", attributes))
        assert names == attributes_read()[target], target
