"""The package as a whole: the names that it shows, their docstrings, and what it says where it is not installed."""

import doctest
import importlib
import os
import pkgutil
import shutil
import sys
import tomllib
from pathlib import Path

from programs import ROOT, run_python

import jaxkernels as jk


def test_dir_shows_the_public_names_alone():
    """Submodules without an underscore are public; they show once they are imported."""
    submodules = {"bench", "flax", "optax", "typing", "verify"}
    shown = {name for name in dir(jk) if not name.startswith("__")}
    assert shown - submodules == set(jk.__all__) - {"__version__"}
    assert {"__version__", "__doc__", "__all__"} <= set(dir(jk))
    assert len(dir(jk)) == len(set(dir(jk)))


def test_dir_of_a_submodule_shows_its_functions_alone():
    for module in (jk.flax, jk.optax):
        assert dir(module) == sorted(module.__all__)
    assert not hasattr(jk.optax, "cross_entropy")


LAZY = """
import sys
import jaxkernels as jk

assert {"flax", "optax"}.isdisjoint(sys.modules)
assert not hasattr(jk, "linen")
names = {}
exec("from jaxkernels import *", names)
assert set(jk.__all__) <= set(names)
assert jk.optax.softmax_cross_entropy.__name__ == "softmax_cross_entropy"
sys.modules["flax"] = None  # as where it is not installed
try:
    jk.flax
except ModuleNotFoundError as error:
    assert str(error) == "jaxkernels.flax needs Flax, which is not installed: pip install flax"
    assert error.name == "flax"
else:
    raise AssertionError
del sys.modules["flax"]
assert jk.flax.dot_product_attention.__module__ == "jaxkernels.flax"
"""


def test_flax_is_imported_when_it_is_used_and_optax_never():
    """And a program that star-imports gets the public names."""
    run_python("-c", LAZY)


def test_a_source_tree_that_is_not_installed_says_what_to_do(tmp_path):
    """A copy of the Python files imports every installed package but this one through links."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in sys.path:
        for entry in Path(folder).glob("*") if folder.endswith("-packages") else ():
            link = packages / entry.name  # the first folder of sys.path that has a name wins
            if not entry.name.startswith(("jaxkernels", "_jaxkernels")) and not link.is_symlink():
                link.symlink_to(entry)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(jk.__file__).parent, tmp_path / "tree" / "jaxkernels", ignore=ignored)
    path = f"{tmp_path / 'tree'}{os.pathsep}{packages}"
    _, errors = run_python("-S", "-c", "import jaxkernels", expect=1, PYTHONPATH=path)
    said = errors.splitlines()[-1]
    assert said.startswith(f"ImportError: jaxkernels was imported from {tmp_path / 'tree'}")
    assert "is not installed" in said
    assert "pip install ." in said


def test_pytest_benchmark_is_not_loaded():
    """Up to 5.2 it warns under xdist before filters of warnings, which are errors here, take effect."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "-p no:benchmark" in " ".join(options["addopts"])


MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(jk.__path__, "jaxkernels.")
    if not name.endswith(("__main__", "._cuda", "._cpu"))
]


def test_docstring_examples():
    attempted = 0
    for name in ["jaxkernels", *MODULES]:
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        attempted += result.attempted
    assert attempted >= 10
