"""``python -m jaxkernels``: prints the installation, the live kernels, and the result of a self-test.

Prints versions, devices, the XLA FFI versions of the build and of the running jaxlib, each target with
the reason if it is not live, and the errors measured by a self-test of about a second. The exit code is 1
if a result is wrong, no target is live, or a CUDA device has no kernels, and 0 otherwise.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import jax

from jaxkernels import _selfcheck
from jaxkernels._core import registry


def _print_versions() -> None:
    versions = registry.versions()
    packages = {name: v for name, v in versions.items() if not name.startswith(("ffi_", "cuda_"))}
    print(", ".join(f"{name} {version}" for name, version in packages.items()))
    print("\nDevices")
    for device in jax.devices():
        print(f"  {device.platform}:{device.id}  {device.device_kind}")
    print("\nXLA FFI")
    print(f"  running jaxlib   {versions['ffi_api_running']}")
    print(f"  jaxkernels._cpu  {versions['ffi_api_cpu']}")
    if registry.has_cuda_module():
        architectures = versions["cuda_architectures"]
        print(f"  jaxkernels._cuda {versions['ffi_api_cuda']}, compiled for {architectures}")


def _print_targets() -> list[str]:
    """Prints the targets, each reason once, and returns JAX's names of the platforms with live targets."""
    print("\nTargets")
    live, reasons = [], set()
    for target in registry.status():
        reason = "as above" if target.why in reasons else target.why
        reasons.add(target.why)
        state = "live" if target.live else f"not live: {reason}"
        print(f"  {target.target:<30} {target.platform:<5} {state}")
        if target.live:
            live.append(target.platform.lower())
    return list(dict.fromkeys(live))


def main(arguments: Sequence[str] = ()) -> int:
    """Prints the report.

    Args:
        arguments: the command line; only --help is accepted.

    Returns:
        The exit code.
    """
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        "python -m jaxkernels", description=__doc__, formatter_class=form
    ).parse_args(arguments)
    _print_versions()
    live = _print_targets()
    start = time.perf_counter()
    outcomes = [(platform, x) for platform in live for x in _selfcheck.run(platform)]
    seconds = time.perf_counter() - start
    print("\nSelf-test: largest error, divided by the largest that rounding explains")
    for platform, outcome in outcomes:
        p = outcome.problem
        verdict = f"FAILED: {outcome.failures[0][1]}" if outcome.failures else "ok"
        case = (
            f"{platform:<5} {p.dtype:<9} {p.how or 'auto':<15} {p.operation:<21} {p.derivative:<5}"
        )
        details = [str(p.options[x]) for x in ("reduction", "shapes") if x in p.options]
        print(f"  {case} {', '.join(details):<22} {outcome.worst:7.3f}  {verdict}")
    failed = sum(bool(outcome.failures) for _, outcome in outcomes)
    missing_cuda = bool(registry.cuda_devices()) and "cuda" not in live
    if missing_cuda:
        print(
            "\nJAX has a CUDA device, but the CUDA targets are not live (see above): "
            "programs on it run the slower pure-JAX reference."
        )
    result = f"{failed} of {len(outcomes)} failed" if failed else f"{len(outcomes)} programs right"
    print(f"\nSelf-test: {result}, {seconds:.1f} s")
    return int(failed > 0 or missing_cuda or not outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
