"""Central moments, merged by deviations (Chan, Golub and LeVeque 1983; Pebay 2008).

Moments are (n, mean, M2, M3, M4), with M_r the sum of the r-th powers of the deviations from the mean.
"""

from __future__ import annotations

from sim.jit import inner, kernel

__all__ = ["MOMENT_FIELDS", "forget", "merge_moments", "pool_rows", "scale_moments"]

MOMENT_FIELDS = 5


@kernel
def merge_moments(a, b):
    """Merge the moments `b` into `a`."""
    nb = b[0]
    if nb == 0.0:
        return
    na = a[0]
    if na == 0.0:
        for r in range(MOMENT_FIELDS):  # assigning to a slice compiles seconds of error messages with it
            a[r] = b[r]
        return
    n = na + nb
    pa, pb = na / n, nb / n
    delta = b[1] - a[1]
    square = delta * delta
    m2, m3, m4 = a[2], a[3], a[4]
    between = square * na * pb
    a[0] = n
    a[1] += delta * pb
    a[2] = m2 + b[2] + between
    a[3] = m3 + b[3] + between * delta * (pa - pb) + 3.0 * delta * (pa * b[2] - pb * m2)
    a[4] = m4 + b[4] + between * square * (pa * pa - pa * pb + pb * pb)
    a[4] += 6.0 * square * (pa * pa * b[2] + pb * pb * m2) + 4.0 * delta * (pa * b[3] - pb * m3)


@inner
def forget(moments):
    """Make `moments` those of no number."""
    for r in range(MOMENT_FIELDS):
        moments[r] = 0.0


@kernel
def scale_moments(moments, factor, out):
    """Write the moments of factor * x, for the moments of x."""
    power = factor
    out[0] = moments[0]
    out[1] = factor * moments[1]
    for r in range(2, MOMENT_FIELDS):
        power *= factor
        out[r] = power * moments[r]


@inner
def _row_moments(sums, unit):
    # In place, (center, sums of d .. d^4) -> (mean, M2, M3, M4): `center` is the mean as rounded to the
    # precision of the scores, and e what that rounding left.
    for i in range(sums.shape[1]):
        d2, d3, d4 = sums[2, i], sums[3, i], sums[4, i]
        n = sums[5, i]
        e = sums[1, i] / max(n, 1.0)  # a row that sees no key of the tile has sums of 0
        sums[0, i] += e / unit
        sums[1, i] = (d2 - n * e * e) / (unit * unit)
        sums[2, i] = (d3 - 3.0 * e * d2 + 2.0 * n * e * e * e) / (unit * unit * unit)
        sums[3, i] = (d4 - 4.0 * e * d3 + 6.0 * e * e * d2 - 3.0 * n * e * e * e * e) / (unit * unit * unit * unit)


@inner
def _pool(rows, out):
    count, total = 0.0, 0.0
    for i in range(rows.shape[1]):
        count += rows[5, i]
        total += rows[5, i] * rows[0, i]
    mean = total / count
    m2, m3, m4 = 0.0, 0.0, 0.0
    for i in range(rows.shape[1]):
        n = rows[5, i]
        d = rows[0, i] - mean
        square = d * d
        r2, r3 = rows[1, i], rows[2, i]
        m2 += r2 + n * square
        m3 += r3 + 3.0 * d * r2 + n * square * d
        m4 += rows[3, i] + 4.0 * d * r3 + 6.0 * square * r2 + n * square * square
    out[0] = count
    out[1] = mean
    out[2] = m2
    out[3] = m3
    out[4] = m4


@kernel
def pool_rows(sums, unit, out):
    """Write into `out` the pooled moments of rows, of which at least one has a score.

    Parameters
    ----------
    sums : array (6, rows)
        Center; the sums of d, d^2, d^3, d^4 with d = unit (s - center); the number of scores. On return the
        first two are each row's mean and M2.
    """
    _row_moments(sums, unit)
    _pool(sums, out)
