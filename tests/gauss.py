"""Gauss's rules of laws: sums over few points that stand for expectations of polynomials."""

import numpy as np

from sim.laws import LAWS


def rule(moments, nodes):
    """Return points and weights with these moments E z^0, E z^1, ...: Gauss's rule, exact to degree 2 nodes - 1.

    Where the last moment is missing any will do.
    """
    moments = [*moments, 0.0]
    hankel = np.array([[moments[i + j] for j in range(nodes)] for i in range(nodes)])
    while np.linalg.cond(hankel) > 1e13:  # the law has fewer values than that
        nodes -= 1
        hankel = hankel[:nodes, :nodes]
    polynomial = np.linalg.solve(hankel, [-moments[nodes + i] for i in range(nodes)])
    points = np.roots([1.0, *polynomial[::-1]]).real
    return points, np.linalg.solve(points ** np.arange(nodes)[:, None], moments[:nodes])


def law_rule(law, nodes):
    """Return the rule of a law of elements, given as a choice."""
    return rule([1.0, *LAWS[law.kind].moments(float(law.parameters[0][1]) if law.parameters else 0.0)], nodes)
