"""What the tests of benchmarks and bars share: small quick runs, and measured cases made of given times."""

from jaxkernels.bench import records
from jaxkernels.bench.__main__ import refusals
from jaxkernels.bench.records import Measured, Record

QUICK = ["--repeats", "2", "--min-sample-ms", "0.1"]


def measured(case, seconds, extra=None, refused=None):
    """A case in which contenders took some seconds; `extra` and `refused` are by contender."""
    extra, refused = extra or {}, refused or {}
    names = dict.fromkeys((*seconds, *refused, *extra))
    found = {
        name: Record(
            case,
            name,
            seconds.get(name),
            [seconds[name]] if name in seconds else (),
            extra.get(name, {}),
            refused.get(name, ""),
        )
        for name in names
    }
    return Measured(case, found)


def run_of(cases, platform="gpu", device="NVIDIA H200"):
    """A run of measured cases."""
    environment = {
        "platform": platform,
        "device": device,
        "jax": "0",
        "date": "now",
        "command": "c",
    }
    return records.Run(
        "made up", environment, {}, tuple(r for m in cases for r in m.records.values())
    )


def text_of(suite, cases, platform="gpu", device="NVIDIA H200"):
    """All tables of measured cases, and why values are missing, as one text."""
    run = run_of(cases, platform, device)
    found = [t for view in suite.views(run) for t in view.tables(run.measured)]
    return "\n".join([*map(str, found), *refusals(run, suite)])
