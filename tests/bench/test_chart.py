"""Axes with round ticks, labels that never touch, lines told apart without colour."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewell.bench import axis
from statewell.bench.chart import DASHES, MARKERS, Chart, Frame, Line, Point, draw, spread_apart

heights = st.lists(st.floats(0, 400), max_size=12).map(sorted)


@given(wanted=heights)
def test_labels_keep_their_order_and_distance_and_stay_inside(wanted):
    places = spread_apart(wanted, 15.0, 0.0, 400.0)
    assert len(places) == len(wanted)
    assert all(after - before >= 15 - 1e-6 for before, after in pairwise(places))
    assert all(-1e-6 <= place <= 400 + 1e-6 for place in places)


def test_labels_with_room_stay_where_they_want_to_be():
    assert spread_apart([10.0, 50.0, 90.0], 15.0, 0.0, 400.0) == [10.0, 50.0, 90.0]


@given(low=st.floats(-100, 100), span=st.floats(1e-3, 1e4))
def test_a_linear_axis_encloses_its_values_with_few_even_ticks(low, span):
    made = axis.linear("x", low, low + span, str)
    ticks = [value for value, _ in made.ticks]
    assert made.low <= low + 1e-6 * span
    assert made.high >= low + span * (1 - 1e-6)
    assert 2 <= len(ticks) <= 9
    steps = {round((after - before) / (ticks[1] - ticks[0]), 6) for before, after in pairwise(ticks)}
    assert steps == {1.0}


@given(low=st.floats(1, 1e6), factor=st.floats(1, 1e9))
def test_a_logarithmic_axis_encloses_its_values_with_powers_of_two(low, factor):
    made = axis.amounts("x", low, low * factor, str)
    assert made.low <= low * (1 + 1e-9)
    assert made.high >= low * factor * (1 - 1e-9)
    assert 2 <= len(made.ticks) <= 7
    assert made.place(made.low) == 0
    assert made.place(made.high) == pytest.approx(1)


def test_context_ticks_keep_the_ends_and_their_distance():
    made = axis.contexts("tokens", (256, 1024, 4096, 16384, 32768), str, apart=0.2)
    places = [made.place(value) for value, _ in made.ticks]
    assert (made.ticks[0][1], made.ticks[-1][1]) == ("256", "32768")
    assert all(after - before >= 0.2 for before, after in pairwise(places))


def test_six_lines_differ_in_dash_and_marker_as_well_as_colour():
    assert len(set(DASHES)) == len(set(MARKERS)) == 6
    points = (Point(1, 1), Point(2, 2, False))
    lines = tuple(Line(style=style, label=f"line {style}", points=points) for style in range(6))
    x = axis.linear("x", 0, 2, str)
    picture = draw(Chart(name="test", summary="six lines", x=x, y=x, lines=lines), Frame(width=400, height=300), "wide")
    for style in range(6):
        assert f'class="s{style}"' in picture
    assert len(set(re.findall(r'<path class="mark" d="M[\d. ]+([a-z])', picture))) >= 3
    assert picture.count('class="mark hollow"') == 6


def test_a_note_stands_beside_the_end_of_its_line_and_away_from_others():
    x, y = axis.linear("x", 0, 10, str), axis.linear("y", 0, 10, str)
    short = Line(style=0, label="short", points=(Point(0, 5), Point(4, 5)), note="ends here")
    below = Line(style=1, label="below", points=(Point(0, 4.7), Point(10, 4.7)))
    frame = Frame(width=500, height=400)
    picture = draw(Chart(name="t", summary="s", x=x, y=y, lines=(short, below)), frame, "wide")
    height = float(re.search(r'class="note" x="[\d.]+" y="([\d.]+)"', picture).group(1))
    assert height < frame.at_y(0.5)
