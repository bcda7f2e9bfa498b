"""From the groups' tallies to values with standard errors.

The replicate is the group: the scores of one trial share Q and K and are dependent, so that counting
scores (or rows) as independent would make the errors several times too small.
"""

from __future__ import annotations

import numpy as np

from sim.tally import Layout, leave_one_out, merge_tree

__all__ = ["Tallies", "jackknife", "rate_error"]


class Tallies:
    """A cell's tallies as an estimator reads them: the whole first, then each with one group left out.

    Estimators are written for any leading axes, so that one expression gives the estimate and its
    jackknife replicates.

    Parameters
    ----------
    groups : array (groups, fields)
        The groups' tallies.
    bins : int64 array (groups, bin fields)
        Their counts in bins.
    layout : Layout
    """

    def __init__(self, groups: np.ndarray, bins: np.ndarray, layout: Layout) -> None:
        whole = groups.copy()
        merge_tree(whole, layout.segments)
        rest = leave_one_out(groups, layout.segments) if len(groups) > 1 else groups[:0]
        self._rows = np.concatenate([whole[:1], rest])
        self._bins = bins
        self._layout = layout
        self.sizes = layout.part(groups, "trials")
        self.trials = float(self.sizes.sum())
        self.rows = self["rows"][:, None] - self["lost_rows"]

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a part, of shape (1 + groups, *part)."""
        return self._layout.part(self._rows, name)

    def group_bins(self, name: str) -> np.ndarray:
        """Return the counts of a part in bins, of shape (groups, *part)."""
        return self._layout.part(self._bins, name)

    def bins(self, name: str) -> np.ndarray:
        """Return the counts of a part in bins, of shape (1 + groups, *part)."""
        counts = self.group_bins(name)
        whole = counts.sum(axis=0, keepdims=True)
        return np.concatenate([whole, whole - counts]) if len(counts) > 1 else whole

    def row_mean(self, name: str) -> np.ndarray:
        """Return the mean over rows, but those without a softmax, of a row quantity, of shape (1 + groups, scales)."""
        return self[name] / self.rows

    def of_some(self, name: str) -> np.ndarray:
        """Return a part of shape (1 + groups, scales), blank where rounding has left no row to have any."""
        return np.where(self.rows > 0, self[name], np.nan)

    def moment(self, order: int) -> np.ndarray:
        """Return the mean (1) or central moment (2, 3, 4) of the scores, (1 + groups, scales); blank of none."""
        moments = self["score_moments"]
        count = moments[..., 0]
        return np.where(count > 0, moments[..., 1], np.nan) if order == 1 else moments[..., order] / count


def jackknife(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the standard error of values[0] by the jackknife over groups of unequal size.

    The delete-m_j jackknife of Busing, Meijer and van der Leeden (1999), equations 6 to 8.

    Parameters
    ----------
    values : array (1 + groups, ...)
        The estimate from all groups, then the estimate without each group.
    sizes : array (groups,)
        Trials in each group.

    Returns
    -------
    array (...)
        NaN for fewer than two groups.
    """
    whole, rest = values[0], values[1:]
    groups = len(rest)
    if groups < 2:
        return np.full_like(whole, np.nan)
    h = (sizes.sum() / sizes).reshape(-1, *(1,) * whole.ndim)
    pseudo = h * whole - (h - 1) * rest
    center = groups * whole - ((1 - 1 / h) * rest).sum(axis=0)
    return np.sqrt(((pseudo - center) ** 2 / (h - 1)).sum(axis=0) / groups)


def rate_error(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the standard error of a rate: 3 / trials where all groups have the same, else the jackknife's.

    So it is where the rate is 0 or 1, or comes from rows alone that can be no other way: the first row of a causal
    trial has one key, and is saturated. Three events in all is what a Poisson count of zero excludes at 95 %.
    """
    error = jackknife(values, sizes)
    if len(values) < 3:
        return error
    is_same = (abs(values - values[0]) < 1e-12).all(axis=0)
    return np.where(is_same, 3 / sizes.sum(), error)
