"""JAX's persistent compilation cache: what one process has compiled the next one loads, and nothing else.

`compilation_cache_worker.py` has the programs. They share the name of their function and, where they can, the shapes of
their operands, so that entries differ by what is computed.
"""

import json

import numpy as np
import pytest
from programs import run_python

HIT, MISS = [1, 0], [0, 1]


@pytest.mark.parametrize("devices", [1, 8])
def test_a_second_process_loads_what_the_first_compiled(devices, tmp_path):
    """In another order, as a key may not depend on what was compiled before; the results are the same bits."""

    def run(number, *order):
        results = tmp_path / f"{number}.npz"
        stdout, _ = run_python(
            "compilation_cache_worker.py",
            devices,
            tmp_path / "cache",
            results,
            *order,
            JAX_PLATFORMS="cpu",
            XLA_FLAGS=None,
        )
        with np.load(results) as arrays:
            return json.loads(stdout.splitlines()[-1]), dict(arrays)

    compiled, first = run(1)
    # No program found an entry of another one, though all have one name and most have one shape.
    assert compiled == dict.fromkeys(compiled, MISS)
    loaded, second = run(2, "reversed")
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert second[name].tobytes() == array.tobytes(), name
    assert loaded.keys() == compiled.keys()
    assert not [name for name, counts in loaded.items() if counts != HIT]
