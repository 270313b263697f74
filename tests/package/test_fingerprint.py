"""tools/fingerprint: what it reads, that it covers every public function, and what it finds equal."""

import runpy
from types import SimpleNamespace

import pytest
from programs import ROOT
from public_functions import computing

import jaxkernels as jk

fingerprint = SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "fingerprint")))
LISTING = """
\t\tFunction : _Z5firstv
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   MOV R1, c[0x0][0x28] ;   /* 0x00000a0000017a02 */
                                                            /* 0x000fe40000000f00 */
\t\t..........
\t\tFunction : _Z6secondi
        /*0000*/                   EXIT ;                   /* 0x000000000000794d */
"""


def test_machine_code_is_read_kernel_by_kernel():
    (first, code), (second, other) = fingerprint.kernels_of(LISTING)
    assert (first, second) == ("_Z5firstv", "_Z6secondi")
    assert (code.count("0x"), other.count("EXIT")) == (4, 1)
    assert fingerprint.demangled([first, second]) == ["first()", "second(int)"]
    padded = LISTING.replace("] ;   ", "] ;       ")  # by the longest line of the object
    assert next(fingerprint.kernels_of(padded)) == (first, code)
    (_, changed), _ = fingerprint.kernels_of(LISTING.replace("R1", "R2"))
    assert fingerprint.hash_of(code) != fingerprint.hash_of(changed)


def test_plans_are_of_every_operation_and_do_not_change_from_call_to_call():
    plans = [*fingerprint.row_plans(2), *fingerprint.product_plans(2)]
    assert plans == [*fingerprint.row_plans(2), *fingerprint.product_plans(2)]
    assert len(dict(plans)) == len(plans)
    assert {name.split()[5] for name, _ in plans if name.startswith("rows")} == set(
        jk._cpu.row_operations()
    )


def test_every_public_function_is_covered():
    tried = {name.split()[0] for name in fingerprint.functions()}
    assert {name.removeprefix("optax.") for name in computing()} <= tried


@pytest.mark.parametrize("kind", ["programs", "bits"])
def test_programs_and_bits_differ_between_functions(kind):
    lines = dict(getattr(fingerprint, kind)(r"^(log_)?softmax last \(64, 1000\) float32"))
    assert lines == dict(getattr(fingerprint, kind)(r"^(log_)?softmax last \(64, 1000\) float32"))
    softmax = {name: value for name, value in lines.items() if not name.startswith("log_")}
    assert softmax
    assert len(lines) == 2 * len(softmax)
    assert all(lines[f"log_{name}"] != value for name, value in softmax.items())


def test_differences(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("a\tx=1, gone=0\nb\ty\nc\tz\n")
    new.write_text("a\tx=1\nb\tw\nd\tz\n")
    text, differs = fingerprint.difference(old, new, [(", gone=0", "")])
    assert differs
    assert text.splitlines() == [
        *("equal: 1", "gone: 1", "  c", "new: 1", "  d", "changed: 1", "  b"),
        *("  - ['y']", "  + ['w']"),
    ]
    assert fingerprint.main(["diff", str(old), str(new)]) == 1
    assert fingerprint.main(["diff", str(old), str(old)]) == 0
    assert "changed: 2" in capsys.readouterr().out
