"""Closed forms of the scores and of softmax's rows, from means, covariances and cumulants, not case by case.

`scores` is what the rest of the package asks: the moments of raw scores and, with `soft_caps`, of scaled ones. Vectors
are sums of `sources` whose components have `covariances`; normalised ones are `directions`. The moments of plain scores
are sums of `cumulants`, those of others are in `normalized_scores`, `projected_scores`, `rotated_scores` and
`additive_scores`, and `mixtures` put together scores that differ in kind, as the `token_pairs` of a trial do. Of some
scores `distributions` knows the law itself, by `norm_laws` of their vectors. `normal_rows` and `row_integrals` have the
weights, the Jacobian and the gradients of rows of normal scores.
"""
