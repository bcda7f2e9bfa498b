"""Scale rules: their numbers, their names, and what is refused."""

import math

import pytest

from sim.errors import InputError
from sim.kinds import short_forms
from sim.scales import SCALES, Rule, needs_d_k, read_scale, scale_factor, scale_label, scale_rule
from sim.sweep import Sweep

# What is given, its label, and the rule for d_k = 64.
RULES = [
    ("none", "none", Rule(1.0)),
    ("sqrt_dk", "sqrt_dk", Rule(1 / 8)),
    ("dk", "dk", Rule(1 / 64)),
    (0.125, "0.125", Rule(0.125)),
    (-3, "-3", Rule(-3.0)),
    (0, "0", Rule(0.0)),
    ("log_n", "log_n", Rule(1.0, log_n=True)),
    ({"kind": "log_n", "factor": 0.43}, "log_n(factor=0.43)", Rule(0.43, log_n=True)),
    ({"kind": "log_n", "factor": 2, "after": "sqrt_dk"}, "log_n(factor=2, after=sqrt_dk)", Rule(0.25, log_n=True)),
    ({"kind": "log_n", "after": 0.5}, "log_n(after=0.5)", Rule(0.5, log_n=True)),
    ({"kind": "softcap", "cap": 50}, "softcap(cap=50)", Rule(1.0, cap=50.0)),
    ({"kind": "softcap", "cap": 50, "after": "none"}, "softcap(cap=50)", Rule(1.0, cap=50.0)),
    ({"kind": "softcap", "cap": 50, "after": "sqrt_dk"}, "softcap(cap=50, after=sqrt_dk)", Rule(1 / 8, cap=50.0)),
    ({"kind": "softcap", "cap": 0.5, "after": "dk"}, "softcap(cap=0.5, after=dk)", Rule(1 / 64, cap=0.5)),
    ({"kind": "softcap", "cap": 30, "after": -2}, "softcap(cap=30, after=-2)", Rule(-2.0, cap=30.0)),
    ({"kind": "power", "exponent": -1}, "power(exponent=-1)", Rule(1 / 64)),
    ({"kind": "power", "exponent": -0.25, "factor": 3}, "power(exponent=-0.25, factor=3)", Rule(3 * 64**-0.25)),
    ({"kind": "power", "exponent": 0}, "power(exponent=0)", Rule(1.0)),
]


@pytest.mark.parametrize(("given", "label", "rule"), RULES)
def test_a_rule(given, label, rule):
    scale = read_scale(given)
    assert scale_label(scale) == label
    found = scale_rule(scale, 64)
    assert found == (pytest.approx(rule.factor, rel=1e-15), rule.log_n, rule.cap)
    slope = found.factor * math.log(128) if rule.log_n else found.factor
    assert scale_factor(scale, 64, 128) == slope
    # The label is the short form that the command line reads, and stored sweeps read back.
    (again,) = short_forms(label)
    assert read_scale(again) == scale
    made = Sweep(d_k=64, n_tokens=4, scale=given)
    assert Sweep(**made.resolved()) == made
    assert made.scale == (scale,)


def test_every_rule_is_tried_above():
    assert {label.partition("(")[0] for _, label, _ in RULES} >= SCALES.keys()


def test_the_linear_rules_are_right_to_the_bit():
    for d_k in (1, 3, 7, 64, 1000):
        assert scale_factor(read_scale("sqrt_dk"), d_k, 5) == 1 / math.sqrt(d_k)
        assert scale_factor(read_scale("dk"), d_k, 5) == 1 / d_k


@pytest.mark.parametrize(("given", "label", "rule"), RULES)
def test_rules_that_need_no_d_k_do_without(given, label, rule):
    scale = read_scale(given)
    needs = any(word in label for word in ("sqrt_dk", "dk", "power"))
    assert needs_d_k(scale) == needs
    if not needs:
        assert scale_rule(scale, None) == rule


def test_a_line_of_rules():
    scales = [read_scale(given) for given in short_forms("none,0.125,softcap(cap=50, after=sqrt_dk), log_n")]
    assert [scale_label(scale) for scale in scales] == ["none", "0.125", "softcap(cap=50, after=sqrt_dk)", "log_n"]


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("softcap", r"^scale\.cap is missing: softcap needs cap, a finite number above 0$"),
        ({"kind": "softcap", "cap": 0}, r"^scale\.cap = 0 is not allowed: it must be a finite number above 0$"),
        ({"kind": "softcap", "cap": -1}, r"^scale\.cap = -1 is not allowed"),
        ({"kind": "softcap", "cap": math.inf}, r"^scale\.cap = inf is not allowed"),
        ({"kind": "softcap", "cap": 1e10}, r"^scale\.cap = 1\S+ is not allowed: it must be 0, or between"),
        ({"kind": "softcap", "cap": "50"}, r"^scale\.cap = '50' is not allowed"),
        (
            {"kind": "softcap", "cap": 5, "after": "sqrt_d"},
            r"^scale\.after = 'sqrt_d' is not allowed: it must be one of none, sqrt_dk, dk or a finite number; did you",
        ),
        ({"kind": "softcap", "cap": 5, "after": "log_n"}, r"^scale\.after = 'log_n' is not allowed"),
        ({"kind": "softcap", "cap": 5, "after": {"kind": "dk"}}, r"^scale\.after = \{'kind': 'dk'\} is not allowed"),
        ({"kind": "softcap", "cap": 5, "after": True}, r"^scale\.after = True is not allowed"),
        ({"kind": "softcap", "cap": 5, "after": 1e10}, r"^scale\.after = 1\S+ is not allowed"),
        ({"kind": "softcap", "cap": [5, 50]}, r"^scale\.cap = \[5, 50\] is not allowed: lists may not stand inside a"),
        ({"kind": "log_n", "factor": math.nan}, r"^scale\.factor = nan is not allowed: it must be a finite number$"),
        ({"kind": "log_n", "power": 1}, r"^scale\.power is unknown: log_n takes factor, after"),
        ("power", r"^scale\.exponent is missing: power needs exponent, a number from -2 to 2$"),
        ({"kind": "power", "exponent": 3}, r"^scale\.exponent = 3 is not allowed: it must be a number from -2 to 2$"),
        (
            {"kind": "power", "exponent": -2, "factor": 1e-6},
            r"^scale = 'power\(exponent=-2, factor=1e-06\)' is not allowed with d_k = 64: it multiplies by 2\.44e-10, ",
        ),
        ({"kind": "log_n", "factor": 1e6, "after": 1e6}, r"^scale = 'log_n\(.*\)' .* it multiplies by 1e\+12, which"),
        (
            ["dk", {"kind": "softcap", "cap": 5}, {"kind": "softcap", "cap": 5.0}],
            r"^scale has 'softcap\(cap=5\)' twice",
        ),
    ],
)
def test_refused(scale, message):
    with pytest.raises(InputError, match=message):
        Sweep(d_k=64, n_tokens=4, scale=scale)
