"""`stats`: print the counts of the last day."""

from __future__ import annotations

from ....identity.names import name_words
from ....management.verbs import Printer, verb
from ..keys import SITE
from ..reading import dropped
from ..recorder import recorder
from ..report import Course, courses, limits
from ..results import WORDS

_HEADS = ("allowed", "refused", "shadow", "blocked", "exempt", "policy", "failed")


@verb("stats show", "show the counts of the last 24 hours, by rule and call site")
def show(command: Printer, options: dict[str, object]) -> None:
    """Print the last day as a table."""
    found = [course for course in limits("day") if course.numbers["requests"]]
    if not found:
        command.say("Nothing was counted yet.")
        return
    names = [name_words(course.name) for course in found]
    width = max(map(len, [*names, "last 24 hours"]))
    heads = "".join(f"{head:>12}" for head in _HEADS)
    command.say(f"{'last 24 hours':{width}}{heads}")
    for name, course in zip(names, found, strict=True):
        command.say(f"{name:{width}}{_numbers(course)}")
    command.say(f"{'all requests':{width}}{_numbers(courses([SITE], 'day')[SITE])}")
    if recorder.error is not None:
        command.warn(f"some statistics cannot be written: {recorder.error}")
    missing = dropped()
    if missing:
        command.warn(f"{missing:,} counts of the last 7 days could not be written, and are missing")


def _numbers(course: Course) -> str:
    return "".join(f"{course.numbers[word]:>12,}" for word in WORDS)
