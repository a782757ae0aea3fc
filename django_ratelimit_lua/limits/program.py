"""The Lua programs, assembled from the `.lua` files: one for any call, and for nearly all hits one in a straight line.

The general program (`program.lua`) opens each limit as functions that work on its state. What nearly every request asks
is a hit of a few limits that neither wait nor count refused hits: that is decided by a program made for its shape, the
algorithms in their order, in which those functions are written out where they are called.
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

_FUNCTION = re.compile(
    r"^local function (\w+)\(([^\n]*)\)\n(.*?)(?:  return ([^\n]*)\n)?^end\n", re.MULTILINE | re.DOTALL
)
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


def _general() -> Program:
    # An algorithm's file is the body of a function: it reads a limit's state into locals and returns the functions
    # that work on them. Behind a branch, so that a call only pays for the algorithms it uses.
    bodies = {name: source(f"limits/algorithms/{name}") for name in ALGORITHMS}
    branches = "else".join(f"if name == '{name}' then\n{body}\n" for name, body in bodies.items())
    opening = f"local open\nfunction open(name, key, limit, period, a, b, c, d, e, f, more)\n{branches}end\nend\n"
    shared = [source("limits/begin"), source("limits/algorithms/state")]
    return Program.of("\n".join([*shared, opening, source("limits/program")]))


class _Function(NamedTuple):
    """A function of a `.lua` file: its parameters, its body, and what it returns at its end."""

    parameters: str
    body: str
    results: str


def _functions(text: str) -> dict[str, _Function]:
    return {name: _Function(*parts) for name, *parts in _FUNCTION.findall(text)}


def _inlined(text: str, functions: dict[str, _Function]) -> str:
    """A text with the functions written out that it calls: on a line of their own, or, of one that only returns an
    expression, anywhere."""
    for name, (parameter, body, result) in functions.items():
        while not body and (call := re.search(rf"\b{name}\(", text)):
            start = end = call.end()
            while text.count("(", start, end) >= text.count(")", start, end):
                end = text.index(")", end) + 1
            argument = text[start : end - 1]
            expression = re.sub(rf"\b{parameter}\b", f"({argument})", result) if parameter else result
            text = f"{text[: call.start()]}({expression}){text[end:]}"

    def write_out(call: re.Match[str]) -> str:
        indent, targets, name, arguments = call.groups()
        parameters, body, results = functions[name]
        lines = [f"  local {parameters} = {arguments}"] if parameters else []
        lines += _inlined(body, functions).splitlines()
        if not targets:
            lines = ["do", *lines, "end"]
        else:
            names = ", ".join(f"{name}_{place}" for place in range(1, targets.count(",") + 2))
            result = f"  {names} = {_inlined(results, functions)}"
            lines = [f"local {names}", "do", *lines, result, "end", f"{targets} = {names}"]
        return "\n".join(indent + line for line in lines)

    calls = rf"^( *)(?:([^\n=]+) = )?({'|'.join(functions)})\((.*)\)$"
    return re.sub(calls, write_out, text, flags=re.MULTILINE)


@cache
def straight(shape: tuple[str, ...]) -> Program:
    """The program for hits of limits of these algorithms."""
    _, head, limit = re.split(r"^\]\]\n|^-{20,}\n", source("limits/hit"), flags=re.MULTILINE)
    shared = _functions(source("limits/algorithms/state"))
    limits = ""
    strings: list[int] = []
    answers: list[str] = []
    for number in range(len(shape), 0, -1):
        text = source(f"limits/algorithms/{shape[number - 1]}")
        hit, numbers = _HIT.search(text), _NUMBERS.search(text)
        assert hit is not None
        code = _FUNCTION.sub("", hit[1]).strip()
        functions = {**shared, **_functions(text), **_functions(hit[1])}
        written = _inlined(Template(limit).safe_substitute(hit=code), functions)
        names = numbers[1].split(", ") if numbers else []
        while names and not re.search(rf"\b{names[-1]}\b", written):
            names.pop()
        state = "nil"
        if re.search(r"\bstate\b", code):
            state = f"state{number}"
            strings.insert(0, number)
        own = ", ".join(f"{word}{number}" for word in _ANSWERS)
        answers.insert(0, own)
        filled = {"number": number, "record": 4 + 2 * number, "state": state, "form": "d" * (6 + len(names))}
        names = ["limit", "period", *names]
        limits = Template(written).substitute(filled, names=", ".join(names), answers=own, others=limits)
    form = "<" + "d" * (5 + len(_ANSWERS) * len(shape))
    text = Template(head).substitute(answers=", ".join(answers), states=_reading(strings), limits=limits, form=form)
    return Program.of(f"{source('limits/begin')}\n{text}".replace("return again", _AGAIN))


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
    if call.operation != "hit" or call.partial or call.max_wait_us or not 1 <= len(charges) <= MOST_LIMITS:
        return GENERAL
    shape: tuple[str, ...] = ()
    for charge in charges:
        if not charge.cost or not charge.limit.hit_by:
            return GENERAL
        shape += (charge.limit.hit_by,)
    return straight(shape)
