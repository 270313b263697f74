"""``python -m jaxkernels``: prints the installation, the live kernels, and the result of a self-test.

Prints versions, devices, the XLA FFI versions of the build and of the running jaxlib, each target with
the reason if it is not live, and the errors measured by a self-test of about a second. The exit code is 1
if a result is wrong or a CUDA device has no kernels, and 0 otherwise.
"""

from __future__ import annotations

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
    """Prints the targets and returns JAX's names of the platforms with live targets."""
    print("\nTargets")
    live = []
    for target in registry.status():
        state = "live" if target.live else f"not live: {target.why}"
        print(f"  {target.target:<30} {target.platform:<5} {state}")
        if target.live:
            live.append(target.platform.lower())
    return list(dict.fromkeys(live))


def _print_checks(checks: list[_selfcheck.Check]) -> None:
    print("\nSelf-test: largest error, divided by the largest that rounding explains")
    for check in checks:
        case = f"  {check.platform:<5} {check.dtype:<9} {check.tier:<15} {check.operation:<20}"
        if check.problem:
            print(f"{case} FAILED: {check.problem}")
            continue
        verdict = "ok" if check.passed else "FAILED"
        print(f"{case} {check.error:7.3f}  {verdict}")


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
    checks = [check for platform in live for check in _selfcheck.run(platform)]
    seconds = time.perf_counter() - start
    _print_checks(checks)
    failed = sum(not check.passed for check in checks)
    missing_cuda = bool(registry.cuda_devices()) and "cuda" not in live
    if missing_cuda:
        print(
            "\nJAX has a CUDA device, but the CUDA targets are not live (see above): "
            "programs on it run the slower pure-JAX reference."
        )
    outcome = f"{failed} of {len(checks)} failed" if failed else f"{len(checks)} results right"
    print(f"\nSelf-test: {outcome}, {seconds:.1f} s")
    return int(failed > 0 or missing_cuda or not checks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
