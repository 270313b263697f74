"""Shared by tests of benchmarks: measured cases of given times, a run without a clock."""

import jax
import jax.numpy as jnp

from jaxkernels.bench import records, suite
from jaxkernels.bench.records import Measured, Record
from jaxkernels.bench.timing import REFUSALS, first_line

QUICK = ["--repeats", "2", "--min-sample-ms", "0.1"]


def measured(case, seconds, extra=None, refused=None):
    """A case in which contenders took some seconds; `extra` and `refused` are by contender."""
    extra, refused, found = extra or {}, refused or {}, {}
    for name in (*seconds, *refused, *extra):
        samples = [] if seconds.get(name) is None else [seconds[name]]
        about = extra.get(name, {}), refused.get(name, "")
        found[name] = Record(case, name, seconds.get(name), samples, *about)
    return Measured(case, found)


def run_of(cases, platform="gpu", device="NVIDIA H200"):
    environment = {"platform": platform, "device": device, "jax": "0", "date": "now"}
    found = tuple(r for m in cases for r in m.records.values())
    return records.Run("made up", environment | {"command": "c"}, {}, found)


def arrays_of(found):
    """The arrays of a result; torch's tensors come in an object that can be waited for."""
    leaves = jax.tree.leaves(getattr(found, "results", found))
    return [y if isinstance(y, jax.Array) else jnp.from_dlpack(y) for y in leaves]


def without_a_clock(patch):
    """Patches the sampling of suites: every contender is called once and takes a millisecond.

    Returns arguments and results of each part, by the case's number and the contender's name.
    """
    called = []

    def call(functions, arguments, **_):
        refused, samples = {}, {}
        called.append({})
        for key, function in functions.items():
            try:
                found = arrays_of(function(*arguments[key][0]))
            except REFUSALS as error:
                refused[key] = first_line(error)
                continue
            called[-1][key] = (arguments[key], found)
            samples[key] = [1e-3, 1e-3]
        return samples, refused

    patch.setattr(suite, "measure_together", call)
    return called
