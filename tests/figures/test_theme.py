"""Every span kind has one colour, and readers with a colour-blindness can tell them apart."""

from itertools import combinations

import numpy as np
import plotly.graph_objects as go
import pytest

from deeppool.figures import theme

# Machado, Oliveira and Fernandes (2009), severity 1.0, for linear RGB.
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPIA = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
NORMAL = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
VISIONS = {"deuteranopia": DEUTERANOPIA, "protanopia": PROTANOPIA, "normal": NORMAL}

RGB_TO_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)

APART = 15.0
"""CIE 1976 units; 2.3 is just noticeable."""


def lab(colour, vision):
    """CIE L*a*b* of a ``#RRGGBB`` as seen."""
    encoded = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    xyz = np.array(RGB_TO_XYZ) @ np.clip(np.array(vision) @ linear, 0, 1) / np.array(WHITE)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one, other, vision=NORMAL):
    return float(np.linalg.norm(lab(one, vision) - lab(other, vision)))


def test_the_distance_has_what_deuteranopia_confuses():
    red, green = "#C03A2E", "#6E7A1E"
    assert distance(red, green) > 50
    assert distance(red, green, DEUTERANOPIA) < APART


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_kinds_are_reported_apart(vision, dark):
    for one, other in combinations(theme.KINDS, 2):
        colours = theme.colour(one, dark=dark), theme.colour(other, dark=dark)
        assert distance(*colours, VISIONS[vision]) > APART, (one, other)


@pytest.mark.parametrize("dark", [False, True])
def test_idle_time_recedes_but_is_seen_against_the_paper(dark):
    to_paper = {kind: distance(theme.colour(kind, dark=dark), theme.paper(dark=dark)) for kind in theme.KINDS}
    assert min(to_paper, key=to_paper.get) == "idle"
    assert to_paper["idle"] > 8


@pytest.mark.parametrize("dark", [False, True])
def test_error_bars_of_bars_are_seen_against_the_paper(dark):
    figure = theme.apply_theme(go.Figure(), title="one", plot_height=100, dark=dark)
    (bar,) = figure.layout.template.data.bar
    for lines in (bar.error_x, bar.error_y):
        # Where the template has none, plotly draws #444444.
        assert distance(lines.color or "#444444", theme.paper(dark=dark)) > 3 * APART


@pytest.mark.parametrize("dark", [False, True])
def test_no_figure_offers_to_upload_itself_to_a_cloud(dark):
    figure = theme.apply_theme(go.Figure(), title="one", plot_height=100, dark=dark)
    assert figure.layout.template.layout.modebar.remove == ("sendChartToCloud",)
