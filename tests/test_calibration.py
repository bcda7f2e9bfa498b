"""Whether the error bars cover: intervals of nominal 95 % over 2000 seeds, against known truths.

Truth is theory where it is exact, else a run of its own that is 200 times longer than the longer one here,
so that its error moves no coverage by 0.1 %. A coverage over 2000 seeds has a standard error of 0.49 %, so
that 93.5 to 96.5 % is what a correct interval passes at three of them.
"""

import numpy as np
import pytest
from scipy import optimize, stats

import sim
from sim.plan import layout, plan

pytestmark = pytest.mark.calibration

SEEDS, CHUNK = 2000, 100
LOWEST, HIGHEST = 93.5, 96.5
FAMILIES = ["scores", "distribution", "weights", "jacobian", "gradients"]
CENTERED = {"d_k": 16, "n_tokens": 64, "observables": FAMILIES}
SHIFTED = {**CENTERED, "query": {"mean": 0.5}, "key": {"mean": 1}}
SPECTRAL = {"d_k": 16, "n_tokens": 16, "observables": ["spectrum"]}
TRUTH = {"trials": 400_000, "seed": 10**6}

# Coverage outside the limits, as it was measured and as the README names it: (trials, what) -> per cent.
# All are rates of few events. Of a rate of 8 rows in all, too low an estimate has too small an error; of none at
# all is known only that it is below 3 / trials. Of the rare bins, those of a few scores cover 88 % and more.
SCALES, THRESHOLDS = ("none", "sqrt_dk", "dk"), (0.9, 0.99, 0.999)
EXCEPTIONS = {
    (40, "saturation_rate none 0.999"): 92.3,
    (40, "vanishing_rate none 0.001"): 88.3,  # 6 rows in all
    **{(n, f"saturation_rate {c} {x}"): 100.0 for n in (40, 2000) for c in SCALES[1:] for x in THRESHOLDS},
    **{(n, f"vanishing_rate {c} {x}"): 100.0 for n in (40, 2000) for c in SCALES[1:] for x in (0.1, 0.01, 0.001)},
    **{(40, f"score_histogram {c}, bins below 100 expected scores"): 98.3 for c in SCALES},
    **{(2000, f"score_histogram {c}, bins below 100 expected scores"): 97.8 for c in SCALES},
}


def seeds(trials: int, fields: dict) -> dict[str, np.ndarray]:
    """Return every estimate and error of all seeds, (seeds, scales, ...); the tallies are dropped."""
    columns = {}
    for first in range(0, SEEDS, CHUNK):
        dataset = sim.run(sim.Sweep(**fields, trials=trials, seed=list(range(first, first + CHUNK))))
        for name in dataset.data_vars:
            if not name.startswith("tally"):
                columns.setdefault(name, []).append(dataset[name].transpose("seed", ...).values)
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def exact_quantiles(fields: dict) -> np.ndarray:
    """Return the scores' quantiles from their exact distribution, (scales, levels)."""
    sweep = sim.Sweep(**fields)
    made = plan(sweep, sweep.cells[0], layout(sweep))
    distribution, reach = made.theory.distribution, 20 * made.theory.std
    raw = [
        optimize.brentq(lambda x, level=level: distribution(np.array([x]))[0][0] - level, -reach, reach)
        for level in sweep.quantile
    ]
    return np.multiply.outer(made.factors, raw)


def known_truth(found: dict[str, np.ndarray], fields: dict, with_run: bool) -> dict[str, np.ndarray]:
    truth = {name: found[f"{name}_theory"][0] for name in found if f"{name}_theory" in found}
    if with_run:
        longer = sim.run(sim.Sweep(**fields, **TRUTH))
        for name, values in truth.items():
            truth[name] = np.where(np.isnan(values), longer[name], values)
        if "score_quantile" in truth:
            truth["score_quantile"] = exact_quantiles(fields)
    return {name: values for name, values in truth.items() if not np.isnan(values).any()}


def coverages(found: dict[str, np.ndarray], truth: dict[str, np.ndarray], fields: dict) -> dict[str, float]:
    """Return the share of intervals that hold the truth, in per cent, by what is estimated."""
    sweep = sim.Sweep(**fields)
    labels = {"score_within_sigma": (1, 2, 3), "score_quantile": sweep.quantile, "saturation_rate": sweep.threshold}
    labels["vanishing_rate"] = sweep.gradient_threshold
    table = {}
    for name, exact in truth.items():
        groups = found["groups"].reshape(-1, *(1,) * exact.ndim)
        holds = abs(found[name] - exact) <= stats.t.ppf(0.975, groups - 1) * found[f"{name}_se"]
        for k, scale in enumerate(sweep.scale_labels):
            if name == "score_histogram":
                scores = found["trials"][0] * sweep.cells[0].n_queries * sweep.cells[0].n_keys
                for what, bins in (("from", exact[k] * scores >= 100), ("below", exact[k] * scores < 100)):
                    table[f"{name} {scale}, bins {what} 100 expected scores"] = 100 * holds[:, k, bins].mean()
            elif name in labels:
                table |= {f"{name} {scale} {x:g}": 100 * holds[:, k, i].mean() for i, x in enumerate(labels[name])}
            else:
                table[f"{name} {scale}"] = 100 * holds[:, k].mean()
    return table


def listing(table: dict[str, float]) -> str:
    return "\n".join(f"{coverage:6.2f}  {what}" for what, coverage in table.items())


def check(trials: int, table: dict[str, float]) -> None:
    print(f"\ncoverage in per cent at {trials} trials\n{listing(table)}")  # noqa: T201  (what `pytest -s` is for here)
    outside = {what: c for what, c in table.items() if not LOWEST <= c <= HIGHEST}
    listed = {what: c for (at, what), c in EXCEPTIONS.items() if at == trials}
    unlisted = {what: c for what, c in outside.items() if what not in listed}
    assert not unlisted, f"outside {LOWEST} to {HIGHEST} %:\n{listing(unlisted)}"
    assert listed.keys() <= outside.keys(), "these exceptions are within the limits now: strike them out"
    for what, coverage in listed.items():
        assert outside[what] == pytest.approx(coverage, abs=0.5), what


@pytest.fixture(scope="module")
def forty():
    return seeds(40, CENTERED)


@pytest.fixture(scope="module")
def forty_shifted():
    return seeds(40, SHIFTED)


def test_intervals_of_40_trials_cover(forty):
    check(40, coverages(forty, known_truth(forty, CENTERED, with_run=True), CENTERED))


def test_intervals_of_2000_trials_cover():
    found = seeds(2000, CENTERED)
    check(2000, coverages(found, known_truth(found, CENTERED, with_run=True), CENTERED))


def test_intervals_of_the_spectrum_cover():
    found = seeds(40, SPECTRAL)
    table = coverages(found, known_truth(found, SPECTRAL, with_run=True), SPECTRAL)
    assert all(LOWEST <= coverage <= HIGHEST for coverage in table.values()), listing(table)


def test_intervals_with_means_cover(forty_shifted):
    table = coverages(forty_shifted, known_truth(forty_shifted, SHIFTED, with_run=False), SHIFTED)
    print(f"\ncoverage in per cent at 40 trials with means\n{listing(table)}")  # noqa: T201  (what `pytest -s` is for here)
    assert all(LOWEST <= coverage <= HIGHEST for coverage in table.values()), listing(table)


def naive_coverage(value, error, truth) -> float:
    return 100 * (abs(value - truth) <= 1.96 * error).mean()


def test_scores_counted_as_independent_do_not_cover(forty, forty_shifted):
    """The errors that the textbook has for independent scores: half of the intervals miss, or most.

    With zero means the mean is the exception: scores that share a query are then uncorrelated.
    """
    scores = 40 * 64 * 64
    table = {}
    for cell, found in (("zero means", forty), ("with means", forty_shifted)):
        mean, variance, kurtosis = (found[f"score_{x}"][:, 0] for x in ("mean", "variance", "excess_kurtosis"))
        exact_mean, exact = found["score_mean_theory"][0, 0], found["score_variance_theory"][0, 0]
        for what, error in (("", np.sqrt(2 / scores) * variance), (" with the kurtosis",
                            np.sqrt((2 + kurtosis) / scores) * variance)):  # fmt: skip
            table[f"variance{what}, {cell}"] = naive_coverage(variance, error, exact)
        table[f"mean, {cell}"] = naive_coverage(mean, np.sqrt(variance / scores), exact_mean)
    print(f"\ncoverage of naive intervals in per cent\n{listing(table)}")  # noqa: T201  (what `pytest -s` is for here)
    exempt = table.pop("mean, zero means")
    assert LOWEST < exempt < HIGHEST
    assert all(coverage < 60 for coverage in table.values()), listing(table)
