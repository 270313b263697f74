"""Problems and devices for the tests of plans of products."""

import hypothesis.strategies as st

from jaxkernels import _cpu

DEVICES = sorted(_cpu.named_devices())
few = st.integers(1, 8)
many = st.one_of(st.integers(1, 300), st.integers(1, 70000), st.sampled_from([64, 4096]))
flags = {"trans_a": st.booleans(), "trans_b": st.booleans()}


@st.composite
def thin_sizes(draw):
    """(m, n, k) that `thin` serves: few k, somewhat more, or any, where one side has few lines.

    From five lines on and with more than 128 k the other side must be MN-major too.
    """
    kind = draw(st.sampled_from(("any", "some", "few")))
    if kind == "any":
        return draw(many), draw(many), draw(st.integers(1, 64))
    m, n = draw(few if kind == "few" else st.integers(1, 16)), draw(many)
    k = draw(many if kind == "few" else st.integers(1, 128))
    return (m, n, k) if draw(st.booleans()) else (n, m, k)


problems = st.one_of(st.tuples(many, many, many), thin_sizes())
