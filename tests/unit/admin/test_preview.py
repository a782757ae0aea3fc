"""The preview of a rule's form: a simulation as lines and words. Nothing is simulated here."""

from __future__ import annotations

from django_ratelimit_lua.admin.preview import BOTTOM, LEFT, RIGHT, TOP, notes, plot, words
from django_ratelimit_lua.operations.simulate import SimulatedHit, Simulation

BURST = Simulation((SimulatedHit(0.0, 10, 5, 0.0),), 10, 5, 0, 0, 60.0)
HELD = Simulation((SimulatedHit(0.0, 2, 2, 30.0), SimulatedHit(20.0, 2, 0, 9.0)), 2, 2, 2, 0, 60.0)


def points(line: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in line.split())]


def test_the_lines_begin_and_end_at_the_edges_and_never_go_down() -> None:
    """What was sent is above what was allowed, everywhere."""
    drawn = plot(BURST)
    sent, allowed = points(drawn.sent), points(drawn.allowed)
    for line in (sent, allowed):
        assert (line[0], line[-1][0]) == ((LEFT, BOTTOM), RIGHT)
        assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
        assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in line)
    assert (sent[-1][1], allowed[-1][1]) == (TOP, (TOP + BOTTOM) / 2)


def test_who_is_held_is_allowed_when_the_turn_comes() -> None:
    """The line of the allowed rises then, not when they were sent."""
    middle = (LEFT + RIGHT) / 2
    assert points(plot(HELD).allowed)[1:3] == [(middle, BOTTOM), (middle, (TOP + BOTTOM) / 2)]


def test_ticks_are_in_a_unit_that_people_read() -> None:
    """Of what is watched: seconds of a minute, days of some days."""
    assert [text for _, text in plot(BURST).across] == ["0 s", "10 s", "20 s", "30 s", "40 s", "50 s", "60 s"]
    long = Simulation((), 0, 0, 0, 0, 3 * 86_400.0)
    assert [text for _, text in plot(long).across][::3] == ["0 d", "1.5 d", "3 d"]
    assert [text for _, text in plot(BURST).up] == ["0", "2.5", "5", "7.5", "10"]


def test_the_same_in_words() -> None:
    """A burst, what follows, and the longest wait."""
    assert words(BURST) == "Of 10 at once, 5 are allowed."
    assert words(HELD) == (
        "Of 2 at once, 2 are allowed. Of 2 that follow steadily, 0 are allowed. The longest wait is 30 s."
    )
    assert words(Simulation((), 0, 0, 0, 0, 60.0)) == "No requests."


def test_what_the_preview_leaves_out_is_said() -> None:
    """Shadow mode, leases and splits change what processes do, not what the limit says."""
    assert notes({}) == []
    assert len(notes({"mode": "shadow", "lease": 5, "split": "equal"})) == 3
    assert "off" in notes({"mode": "off"})[0]
