"""The Lua programs, assembled from the `.lua` files: one for any call, and for nearly all hits one in a straight line.

The general program (`program.lua`) opens each limit as functions that work on its state. What nearly every request asks
is a hit of a few limits that neither wait, nor count refused hits, nor ban: that is decided by a program made for its
shape, the algorithms in their order, in which those functions are written out where they are called.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from .algorithms import ALGORITHMS

if TYPE_CHECKING:
    from .call import Call

MOST_LIMITS = 3
"""Of a program in a straight line. Servers keep each program for good, and this bounds how many shapes there are."""

_COMMENT = re.compile(r"\n? *--(?:\[(=*)\[.*?\]\1\]|[^\n]*)", re.DOTALL)
_FUNCTION = re.compile(
    r"^local function (\w+)\(([^\n]*)\)\n(.*?)(?:  return ([^\n]*)\n)?^end\n", re.MULTILINE | re.DOTALL
)
_NESTED = re.compile(r"^( *)local function .*?^\1end$", re.MULTILINE | re.DOTALL)
_HIT = re.compile(r"^--\[==\[ hit\n(.*?)^\]==\]$", re.MULTILINE | re.DOTALL)
_NUMBERS = re.compile(r"^local (.*) = a(?:, [b-f])*$", re.MULTILINE)
_ANSWERS = ("allowed", "used", "room", "retry", "reset", "wait", "counted")
_AGAIN = (
    "return {err = 'AGAIN ' .. string.gsub(token, '.', function(c) return string.format('%02x', string.byte(c)) end)}"
)


class Program(NamedTuple):
    """The source of a program, and the digest that it is called by."""

    source: bytes
    sha: bytes

    @classmethod
    def of(cls, text: str) -> Program:
        """The program with that source."""
        source = text.encode()
        return cls(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


def source(name: str) -> str:
    """The text of a `.lua` file, by its path in the package without the ending: "engine/heartbeat"."""
    return files("django_ratelimit_lua").joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _without_comments(text: str) -> str:
    return _COMMENT.sub("", text)


_BODIES = {name: source(f"limits/algorithms/{name}") for name in ALGORITHMS}
_HITS = {name: _without_comments(hit[1]) for name, body in _BODIES.items() if (hit := _HIT.search(body))}
_STATE = source("limits/algorithms/state")
_HEAD, _LIMIT = map(_without_comments, re.split(r"^-{20,}\n", source("limits/hit"), flags=re.MULTILINE))


def _general() -> Program:
    # An algorithm's file is the body of a function: it reads a limit's state into locals and returns the functions
    # that work on them. Behind a branch, so that a call only pays for the algorithms it uses.
    branches = "else".join(f"if name == '{name}' then\n{body}\n" for name, body in _BODIES.items())
    opening = f"local open\nfunction open(name, key, limit, period, a, b, c, d, e, f, more)\n{branches}end\nend\n"
    shared = [source("limits/begin"), _STATE, source("limits/ban")]
    return Program.of("\n".join([*shared, opening, source("limits/program")]))


class _Function(NamedTuple):
    """A function of a `.lua` file: its parameters, its body, and what it returns at its end."""

    parameters: str
    body: str
    results: str


def _functions(text: str) -> dict[str, _Function]:
    return {name: _Function(*parts) for name, *parts in _FUNCTION.findall(text)}


def _inlined(text: str, functions: dict[str, _Function]) -> str:
    """A text with the functions written out that it calls; both without comments.

    A function stands at the edge of its file and returns once, in its last line, or never. It is called on a line
    of its own, `name(...)` or `targets = name(...)`. One that only returns an expression has at most one parameter, and
    may be called anywhere. What breaks this is an `AssertionError`.
    """

    def write_out(call: re.Match[str]) -> str:
        indent, targets, name, arguments = call.groups()
        parameters, body, results = functions[name]
        assert not re.search(r"\breturn\b", _NESTED.sub("", body)), f"{name} returns before its end"
        lines = [f"  local {parameters} = {arguments}"] if parameters else []
        lines += _inlined(body, functions).splitlines()
        if not targets:
            lines = ["do", *lines, "end"]
        else:
            names = ", ".join(f"{name}_{place}" for place in range(1, targets.count(",") + 2))
            result = f"  {names} = {_with_expressions(results, functions)}"
            lines = [f"local {names}", "do", *lines, result, "end", f"{targets} = {names}"]
        return "\n".join(indent + line for line in lines)

    any_name = "|".join(functions)
    calls = rf"^( *)(?:((?:local )?[\w.]+(?:, [\w.]+)*) = )?({any_name})\((.*)\)$"
    text = re.sub(calls, write_out, _with_expressions(text, functions), flags=re.MULTILINE)
    left = re.search(rf"(?<![.\w])(?:{any_name})\(.*", text)
    assert not left, f"called within a line: {left[0]}"
    return text


def _with_expressions(text: str, functions: dict[str, _Function]) -> str:
    """A text with those of the functions written out that only return an expression."""
    for name, (parameter, body, result) in functions.items():
        while not body and (call := re.search(rf"(?<![.\w]){name}\(", text)):
            assert "," not in parameter, f"{name} has several parameters"
            start = end = call.end()
            while text.count("(", start, end) >= text.count(")", start, end):
                end = text.index(")", end) + 1
            argument = f"({text[start : end - 1]})"
            expression = argument.join(re.split(rf"\b{parameter}\b", result)) if parameter else result
            text = f"{text[: call.start()]}({expression}){text[end:]}"
    return text


@cache
def straight(shape: tuple[str, ...]) -> Program:
    """The program for hits of limits of these algorithms."""
    limits = ""
    strings: list[int] = []
    for number in range(len(shape), 0, -1):
        limits = _limit(number, shape[number - 1], limits)
        if _reads_a_string(shape[number - 1]):
            strings.insert(0, number)
    answers = ", ".join(_answers(number) for number in range(1, len(shape) + 1))
    form = "<" + "d" * (5 + len(_ANSWERS) * len(shape))
    text = Template(_HEAD).substitute(answers=answers, states=_reading(strings), limits=limits, form=form)
    return Program.of(f"{source('limits/begin')}\n{text}".replace("return again", _AGAIN))


def _limit(number: int, name: str, others: str) -> str:
    """What decides the limit of that number, by the algorithm of that name, and the others behind it."""
    text, hit = _without_comments(_BODIES[name]), _HITS[name]
    functions = _functions("\n".join([_without_comments(_STATE), text, hit]))
    code = _FUNCTION.sub("", hit).strip()
    written = _inlined(Template(_LIMIT).safe_substitute(hit=code), functions)
    numbers = _NUMBERS.search(text)
    names = numbers[1].split(", ") if numbers else []
    while names and not re.search(rf"\b{names[-1]}\b", written):
        names.pop()
    return Template(written).substitute(
        number=number,
        record=4 + 2 * number,
        state=f"state{number}" if _reads_a_string(name) else "nil",
        form="d" * (6 + len(names)),
        names=", ".join(["limit", "period", *names]),
        answers=_answers(number),
        others=others,
    )


def _answers(number: int) -> str:
    return ", ".join(f"{word}{number}" for word in _ANSWERS)


def _reads_a_string(name: str) -> bool:
    return bool(re.search(r"\bstate\b", _FUNCTION.sub("", _HITS[name])))


def _reading(numbers: list[int]) -> str:
    """What reads the states of the limits of these numbers, which are strings."""
    if len(numbers) == 1:
        return f"local state{numbers[0]} = redis.pcall('GET', KEYS[{numbers[0]}])"
    keys = ", ".join(f"KEYS[{number}]" for number in numbers)
    lines = [f"local states = redis.pcall('MGET', {keys})", "if states.err then return again end"] if numbers else []
    for place, number in enumerate(numbers, 1):
        # Of a key of another type, MGET says that there is none.
        is_foreign = f"not state{number} and redis.pcall('EXISTS', KEYS[{number}]) ~= 0"
        lines += [f"local state{number} = states[{place}]", f"if {is_foreign} then return again end"]
    return "\n".join(lines)


GENERAL = _general()


def program_for(call: Call) -> Program:
    """The program that decides a call."""
    charges = call.charges
    if (
        call.operation != "hit"
        or call.partial
        or call.debt
        or call.max_wait_us
        or call.waits
        or not 1 <= len(charges) <= MOST_LIMITS
    ):
        return GENERAL
    shape: tuple[str, ...] = ()
    for charge in charges:
        if not charge.cost or charge.limit.hit_by not in _HITS:
            return GENERAL
        shape += (charge.limit.hit_by,)
    return straight(shape)
