"""A model of attention on tensor cores with pairs of float16, in NumPy: the arithmetic of ffi/attention.

`python tests/support/attention_pairs.py [length ...]` prints relative Frobenius errors against float64 for
several distributions of the operands, next to those of float32 products.

wgmma is modelled as one addition per 16 terms, whose sum is truncated to 25 bits.
"""

import sys

import numpy as np

DEPTH = 64
ROWS = 128  # rows of a block that share an exponent; keys of a tile
F = np.float32


def exponent_of(largest):
    """The exponent of the power of two that brings the largest element into [2^14, 2^15)."""
    _, e = np.frexp(np.where(largest > 0, largest, 1))
    return np.clip(15 - e, -113, 126)


def split(x):
    """High and low float16 parts, as float64."""
    high = x.astype(F).astype(np.float16).astype(np.float64)
    return high, (x.astype(F) - high.astype(F)).astype(np.float16).astype(np.float64)


def block_pairs(x):
    """The pair of each row block of x (rows, depth), and the exponents (rows, 1)."""
    blocks = [x[i : i + ROWS] for i in range(0, len(x), ROWS)]
    e = np.concatenate([np.full((len(b), 1), exponent_of(np.abs(b).max())) for b in blocks])
    return *split(np.ldexp(x, e)), e


def truncated(x, bits):
    """x, cut off after this number of significant bits; overwrites x."""
    whole = x.view(np.int64)
    whole &= -(1 << (53 - bits))
    return x


def product(a, b):
    """a b of pairs (rows, k) and (k, columns): cross products first, in one accumulator."""
    (a_high, a_low), (b_high, b_low) = a[:2], b[:2]
    total = np.zeros((a_high.shape[0], b_high.shape[1]))
    steps = range(0, a_high.shape[1], 16)
    for x, y in ((a_high, b_low), (a_low, b_high), (a_high, b_high)):
        for k in steps:
            total += x[:, k : k + 16] @ y[k : k + 16]
            total = truncated(total, 25)
    return truncated(total, 24).astype(F)


_rng = np.random.default_rng(7)


def exp2(x):
    """ex2.approx.ftz, with errors drawn at random."""
    found = np.exp2(x.astype(np.float64))
    found *= 1 + _rng.uniform(-1, 1, found.shape) * 2.0**-23
    return np.where(found < 2.0**-126, 0, found).astype(F)


def scores_of(q, k, scale, bias):
    """The scores in base 2, as the kernels compute them in each pass; q and k are pairs of blocks."""
    found = product(q, (k[0].T, k[1].T))
    factor = F(scale * np.log2(np.e)) * np.exp2(-(q[2] + k[2].T).astype(np.float64)).astype(F)
    found = (found * factor).astype(F)
    return found if bias is None else (found + bias * F(np.log2(np.e))).astype(F)


def forward(q, k, v, scale, bias=None):
    """O, and each row's reference (its maximum in base 2, rounded up to an integer) and sum."""
    qp, kp, vp = block_pairs(q), block_pairs(k), block_pairs(v)
    rows = len(q)
    m, total = np.full((rows, 1), -np.inf, F), np.zeros((rows, 1), F)
    out, unit = np.zeros((rows, v.shape[1]), F), int(vp[2][0, 0])
    for j in range(0, len(k), ROWS):
        tile = slice(j, j + ROWS)
        own = None if bias is None else bias[:, tile]
        s = scores_of(qp, [x[tile] for x in kp], scale, own)
        new = np.maximum(m, np.ceil(s.max(1, keepdims=True)))
        alpha = np.exp2(m - new)  # exact
        p = exp2((s - (new - F(14))).astype(F))
        total = (total * alpha + p.sum(1, keepdims=True, dtype=F)).astype(F)
        e = int(vp[2][j, 0])
        least = min(unit, e)
        promoted = product(split(p), [x[tile] for x in vp[:2]]) * F(2.0 ** max(least - e, -126))
        out = (out * (alpha * F(2.0 ** (least - unit))) + promoted).astype(F)
        unit, m = least, new
    return np.ldexp((out / total).astype(F), -unit), m, np.ldexp(total, -14)


def row_pair(x):
    """Pairs of rows, each with an exponent of its own."""
    e = exponent_of(np.abs(x).max(1, keepdims=True))
    return *split(np.ldexp(x, e)), e


def score_gradients(q, k, v, g, m, delta, scale, bias):
    """P 2^-e and dS of a tile; g: dO / l in pairs of rows, whose exponents are e."""
    s = scores_of(q, k, scale, bias)
    dp = (product(g, (v[0].T, v[1].T)) * np.exp2(-v[2].T.astype(np.float64)).astype(F)).astype(F)
    p = exp2((s - m).astype(F))
    return p, (p * (dp - delta)).astype(F)


def backward(q, k, v, do, scale, bias, rows, keys):
    """dQ and dBias of the first `rows` queries, dK and dV of the first `keys` keys."""
    out, m, total = forward(q, k, v, scale, bias)
    scaled = (do / total).astype(F)
    g = row_pair(scaled)
    delta = (np.ldexp(scaled, g[2]) * out).sum(1, keepdims=True, dtype=F)
    qp, kp, vp = block_pairs(q), block_pairs(k), block_pairs(v)

    def cut(x, where):
        return [part[where] for part in x]

    # Errors of delta and of dP - delta must cancel as they do if one sum follows from the other. The kernel
    # of dQ therefore also sums dS and P K, and corrects delta and dQ by them.
    dq, slack, mass = np.zeros(q.shape, F), np.zeros((len(q), 1), F), np.zeros((len(q), 1), F)
    weighted = np.zeros(q.shape, F)
    for j in range(0, len(k), ROWS):
        tile = slice(j, j + ROWS)
        own = None if bias is None else bias[:, tile]
        kt = cut(kp, tile)
        p, ds = score_gradients(qp, kt, cut(vp, tile), g, m, delta, scale, own)
        slack += ds.sum(1, keepdims=True, dtype=F)
        mass += p.sum(1, keepdims=True, dtype=F)
        row, e = row_pair(ds), kt[2][0, 0]
        dq += np.ldexp(product(row, kt), -(row[2] + e)).astype(F)
        high = (np.ldexp(p, 14).astype(np.float16).astype(F), kt[0].astype(F))
        weighted += np.ldexp(high[0] @ high[1], -(14 + e)).astype(F)
    correction = (slack / mass).astype(F)
    delta = (delta + correction).astype(F)
    dq = np.ldexp((dq - correction * weighted).astype(F), -g[2])
    top, dbias = slice(0, rows), []
    for j in range(0, len(k), ROWS):
        tile = slice(j, j + ROWS)
        own = None if bias is None else bias[top, tile]
        pairs = cut(qp, top), cut(kp, tile), cut(vp, tile), cut(g, top)
        _, ds = score_gradients(*pairs, m[top], delta[top], scale, own)
        dbias.append(np.ldexp(ds, -g[2][top]))
    dk, dv = np.zeros((keys, k.shape[1]), F), np.zeros((keys, v.shape[1]), F)
    left = slice(0, keys)
    for i in range(0, len(q), ROWS):
        tile = slice(i, i + ROWS)
        own = None if bias is None else bias[tile, left]
        pairs = cut(qp, tile), cut(kp, left), cut(vp, left), cut(g, tile)
        least = g[2][tile].min()
        p, ds = score_gradients(
            *pairs, m[tile] + F(1) * (g[2][tile] - least), delta[tile], scale, own
        )
        for part, of, found, e in ((p, g, dv, least), (ds, qp, dk, least)):
            row = row_pair(part.T)
            other = cut(of, tile)
            extra = other[2][0, 0] if of is qp else 0
            found += np.ldexp(product(row, other), -(row[2] + e + extra)).astype(F)
    return {
        "O": out,
        "dV": dv,
        "dQ": dq[top] * F(scale),
        "dK": dk * F(scale),
        "dBias": np.concatenate(dbias, 1),
    }


def exact(q, k, v, do, scale, bias, dtype):
    """The same results by products of a dtype."""
    q, k, v, do = (x.astype(dtype) for x in (q, k, v, do))
    s = q @ k.T * dtype(scale)
    if bias is not None:
        s = s + bias.astype(dtype)
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    ds = do @ v.T
    ds -= (ds * p).sum(1, keepdims=True)
    ds *= p
    results = {"O": p @ v, "dV": p.T @ do, "dQ": ds @ k * dtype(scale)}
    return results | {"dK": ds.T @ q * dtype(scale), "dBias": ds}


def operands(name, length, rng):
    """q, k, v, dO and a bias or None of one distribution."""
    q, k, v, do = (rng.standard_normal((length, DEPTH)).astype(F) for _ in range(4))
    bias = None
    if name == "x4":
        q, k = q * 4, k * 4
    elif name == "positive":
        q, k, v, do = (np.abs(x) for x in (q, k, v, do))
    elif name == "lognormal":
        q, k, v, do = (
            np.exp(1.5 * x) * np.sign(rng.standard_normal(x.shape)) for x in (q, k, v, do)
        )
        q, k = q / 4, k / 4
    elif name == "one-hot":
        bias = np.zeros((length, length), F)
        bias[np.arange(length), rng.permutation(length)] = np.log(length * 1e6)
        q = q / 8
    elif name == "rows of dO":
        do = do * np.exp2(-34 * rng.random((length, 1))).astype(F)
    elif name == "V, dO 1e30":
        v, do = v * F(1e30), do * F(1e-30)
    elif name == "V, dO 1e-30":
        v, do = v * F(1e-30), do * F(1e30)
    elif name == "Q 2^60":
        q, k = q * F(2.0**60), k * F(2.0**-60)
    elif name == "bias":
        bias = rng.standard_normal((length, length)).astype(F)
    return *(x.astype(F) for x in (q, k, v, do)), bias


NAMES = ("normal", "x4", "positive", "lognormal", "one-hot", "rows of dO", "V, dO 1e30")
NAMES += ("V, dO 1e-30", "Q 2^60", "bias")
LONG = ("normal", "positive", "lognormal", "rows of dO")


def errors(found, want):
    """The relative Frobenius error, and the largest relative error of a row."""
    want = want[: len(found)]
    difference = found.astype(np.float64) - want
    norms = np.linalg.norm(want, axis=1)
    peak = np.abs(want).max()
    rows = np.linalg.norm(difference, axis=1)[norms > 0] / norms[norms > 0]
    return np.linalg.norm(difference / peak) / np.linalg.norm(want / peak), rows.max()


def main(lengths):
    for length in lengths:
        part = min(length, 256)
        for name in NAMES if length <= 2048 else LONG:
            rng = np.random.default_rng(1)
            given = operands(name, length, rng)
            scale = 1 / np.sqrt(DEPTH)
            found = backward(*given[:4], scale, given[4], part, part)
            want = exact(*given[:4], scale, given[4], np.float64)
            single = exact(*given[:4], scale, given[4], F)
            for key, value in found.items():
                mine = errors(value[:part], want[key])
                theirs = errors(single[key][:part], want[key])
                print(
                    f"{length:6} {name:12} {key:6} relF {mine[0]:.1e} worst row {mine[1]:.1e}"
                    f"   float32: {theirs[0]:.1e} {theirs[1]:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main([int(x) for x in sys.argv[1:]] or [512])
