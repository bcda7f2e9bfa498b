"""Figures: the same bytes from the same dataset, intervals by Student's t, theory beneath the points."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sim import figures


@pytest.fixture
def dataset() -> xr.Dataset:
    """Two laws, three lengths: variance = d_k exactly, measured one standard error too high."""
    d_k, law = np.array([4, 16, 64]), ["rademacher", "gaussian"]
    theory = np.repeat(d_k[:, None], 2, axis=1).astype(float)
    error = 0.05 * theory
    dims = ("d_k", "law")
    return xr.Dataset(
        {
            "score_variance": (dims, theory + error),
            "score_variance_se": (dims, error),
            "score_variance_theory": (dims, theory),
            "trials": (dims, np.full((3, 2), 100)),
            "groups": (dims, [[50, 50], [33, 33], [1, 1]]),
        },
        coords={"d_k": d_k, "law": law, "n_queries": 8, "n_keys": 16, "seed": 3},
    )


def drawn(dataset: xr.Dataset) -> Figure:
    with figures.style():
        figure, axes = figures.new()
        figures.points(axes, dataset, "score_variance", by="law")
        axes.legend()
        figures.stamp(figure, dataset)
    return figure


def test_the_same_dataset_gives_the_same_bytes(dataset: xr.Dataset, tmp_path: Path) -> None:
    one = figures.save(drawn(dataset), tmp_path / "one")
    with mpl.rc_context({"font.size": 30, "svg.hashsalt": "other", "lines.linewidth": 9}):
        two = figures.save(drawn(dataset), tmp_path / "two")
    assert [path.name for path in one] == ["figure.png", "figure.svg"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_a_file_that_would_not_change_is_left_alone(dataset: xr.Dataset, tmp_path: Path) -> None:
    paths = figures.save(drawn(dataset), tmp_path)
    before = [path.stat().st_mtime_ns for path in paths]
    assert [path.stat().st_mtime_ns for path in figures.save(drawn(dataset), tmp_path)] == before
    paths[0].write_bytes(b"old")
    figures.save(drawn(dataset), tmp_path)
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.png", "figure.svg"]


def test_nothing_in_a_figure_tells_when_or_by_what_it_was_drawn(dataset: xr.Dataset, tmp_path: Path) -> None:
    png, svg = (path.read_bytes() for path in figures.save(drawn(dataset), tmp_path))
    for told in (b"dc:date", b"dc:creator", b"Software", mpl.__version__.encode()):
        assert told not in svg
        assert told not in png


def test_the_style_leaves_the_user_s_settings_as_they_were() -> None:
    before = dict(mpl.rcParams)
    with figures.style():
        assert mpl.rcParams["svg.hashsalt"] == "attention-sim"
    assert dict(mpl.rcParams) == before


def test_intervals_use_student_s_t_with_one_degree_of_freedom_less_than_groups(dataset: xr.Dataset) -> None:
    half = figures.half_width(dataset, "score_variance").sel(law="gaussian").values
    # Table values of t at 97.5 %: 2.0096 for 49 degrees of freedom, 2.0369 for 32.
    np.testing.assert_allclose(half[:2] / [0.2, 0.8], [2.0096, 2.0369], atol=1e-4)
    assert np.isnan(half[2])


def test_points_stand_over_the_theory_s_curve_in_one_colour_a_series(dataset: xr.Dataset) -> None:
    figure = drawn(dataset)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rademacher", "gaussian"]
    curves = [line for line in axes.lines if line.get_linestyle() != "None" and len(line.get_xdata()) == 3]
    assert len(curves) == 2
    for curve in curves:
        np.testing.assert_array_equal(curve.get_ydata(), [4, 16, 64])
    assert len({line.get_color() for line in axes.lines}) == 2


def test_a_dimension_left_over_is_named(dataset: xr.Dataset) -> None:
    with figures.style():
        _, axes = figures.new()
    with pytest.raises(ValueError, match=r"score_variance: choose a value for \['law'\]"):
        figures.points(axes, dataset, "score_variance")


def test_points_need_neither_errors_nor_theory(dataset: xr.Dataset) -> None:
    with figures.style():
        _, axes = figures.new()
        bare = dataset.drop_vars(["score_variance_se", "score_variance_theory"])
        figures.points(axes, bare, "score_variance", law="gaussian", label="measured")
    assert len(axes.lines) == 1


def test_the_foot_names_the_parameters(dataset: xr.Dataset) -> None:
    assert drawn(dataset).get_supxlabel().split("  ·  ") == [
        "gaussian, rademacher elements",
        "100 trials a point",
        "8 queries",
        "16 keys",
        "seed 3",
        "bars: 95 % intervals",
    ]


def test_neighbouring_series_differ_in_lightness_marker_and_dash() -> None:
    light = [np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722)) for colour in figures.PALETTE]
    assert min(abs(np.diff(light))) > 0.08
    looks = [figures.look(index) for index in range(7)]
    for key in ("color", "marker", "linestyle"):
        assert len({str(look[key]) for look in looks}) == 7
