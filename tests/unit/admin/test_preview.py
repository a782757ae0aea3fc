"""The preview of a rule's form, which shows a simulation as lines and text. These tests simulate
nothing.
"""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from django_ratelimit_lua.admin.preview import notes, plot, words
from django_ratelimit_lua.operations.plot import labels, ticks
from django_ratelimit_lua.operations.simulate import SimulatedHit, Simulation

BURST = Simulation((SimulatedHit(0.0, 10, 5, 0.0),), 10, 5, 0, 0, 60.0)
HELD = Simulation((SimulatedHit(0.0, 2, 2, 30.0), SimulatedHit(20.0, 2, 0, 9.0)), 2, 2, 2, 0, 60.0)


def lines(simulation: Simulation) -> dict[str, str]:
    return dict(plot(simulation).paths)


def test_the_lines_begin_and_end_at_the_edges() -> None:
    """The line of sent requests rises to the top. The line of allowed requests rises to half the
    height, because half of them are allowed.
    """
    top, half, ground = (f"{plot(BURST).y(share):g}" for share in (1.0, 0.5, 0.0))
    assert lines(BURST) == {
        "line sent": f"M52 {ground}H52V{top}H614",
        "line passed": f"M52 {ground}H52V{half}H614",
    }


def test_a_held_request_is_drawn_as_allowed_at_its_turn() -> None:
    """The line of allowed requests rises when the held request has its turn, not when it
    is sent.
    """
    assert f"H{plot(HELD).x(0.5):g}V{plot(HELD).y(0.5):g}" in lines(HELD)["line passed"]


def test_the_time_axis_has_suitable_units() -> None:
    """The axis has seconds for a minute and days for several days."""
    assert [text for _, text in plot(BURST).across] == [
        "0 s",
        "10 s",
        "20 s",
        "30 s",
        "40 s",
        "50 s",
        "60 s",
    ]
    long = Simulation((), 0, 0, 0, 0, 3 * 86_400.0)
    assert [text for _, text in plot(long).across][::3] == ["0 d", "1.5 d", "3 d"]
    assert [text for _, text in plot(BURST).up] == ["0", "2", "4", "6", "8", "10"]


def test_the_result_is_described_in_words() -> None:
    """The text contains the results of the burst and of the steady requests, and the
    longest wait.
    """
    assert words(BURST) == "Requests at once: 5 of 10 allowed."
    assert words(HELD) == (
        "Requests at once: 2 of 2 allowed. Steady requests: 0 of 2 allowed. The "
        "longest wait "
        "is 30 s."
    )
    assert words(Simulation((), 0, 0, 0, 0, 60.0)) == "No requests."


def test_the_preview_lists_ignored_options() -> None:
    """Shadow mode, leases, splits and the mode "off" have a note, because the preview does not
    simulate them.
    """
    assert notes({}) == []
    assert len(notes({"mode": "shadow", "lease": 5, "split": True})) == 3
    assert "off" in notes({"mode": "off"})[0]


@given(st.integers(0, 10**9))
def test_the_axis_shows_whole_numbers_of_requests(number: int) -> None:
    """For any number of requests, the labels are different whole numbers, and there are at most
    eleven.
    """
    shown = labels(ticks(number))
    assert all(re.fullmatch(r"[\d,]+", text) for _, text in shown)
    assert len({text for _, text in shown}) == len(shown) <= 11
