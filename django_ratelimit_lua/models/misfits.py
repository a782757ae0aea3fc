"""What does not fit together in a row, in the words that its form has for its fields.

`compile_rule` judges every rule; what it says is for who writes code. Whatever a form can be filled in wrongly with is
said here, before it is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..conf import conf
from ..identity.keys import ALL_CALLERS, compile_key
from ..limits import algorithms, calendar
from ..limits.algorithms.concurrency import MOST_SLOTS
from ..limits.algorithms.sliding_log import LONGEST_LOG
from ..limits.ban import MOST_LENGTHS
from ..limits.options import OPTIONS, WeightError, read_weights
from ..limits.rate import LimitError, Rate, duration
from ..rules.descriptors import LONGEST_ENTRY, MOST_ENTRIES, DescriptorPattern, entry_of, unread
from ..rules.rule import LONGEST_PATTERN, MOST_PATTERNS, MOST_RATES, WRONG
from .rate_fields import WRITTEN, RateFields, rate_problem, rate_text

Misfit = tuple[str, str]
"""A field, and what is wrong with it."""
BY_HAND = (*WRONG, AttributeError, LookupError)
"""What comes of a row that somebody has written to by hand: then the rule as a whole is wrong, which is said."""


def misfits(row: Mapping[str, Any]) -> list[Misfit]:
    """What does not fit together in a rule, by the values of its fields; empty where all does, as far as this sees."""
    try:
        return [*_scope(row), *_key(row), *([] if row["exempt"] else [*_rates(row), *_options(row)])]
    except BY_HAND:
        return []


def number_misfits(row: Mapping[str, Any]) -> list[Misfit]:
    """What of a rule's limit and options does not fit together, for other numbers in their place."""
    try:
        return [*_rates(row), *_options(row)]
    except BY_HAND:
        return []


def by_field(
    found: Sequence[Misfit], fields: Collection[str] | None = None, otherwise: str = ""
) -> dict[str, list[str]]:
    """The same for a `ValidationError`; what is of none of these fields (None: all) is said of another."""
    problems: dict[str, list[str]] = {}
    for field, problem in found:
        problems.setdefault(field if fields is None or field in fields else otherwise, []).append(problem)
    return problems


def algorithm_name(name: str) -> str:
    """What an algorithm is called."""
    return _(algorithms.find(name).label).partition(":")[0]


def label(option: str) -> str:
    """What an option is called."""
    return str(capfirst(_(OPTIONS[option].label)))


def _scope(row: Mapping[str, Any]) -> Iterator[Misfit]:
    paths = [line.strip() for line in row["path"].splitlines() if line.strip()]
    for path in paths:
        if not path.startswith(("/", "*")):
            yield "path", _("“%(path)s” does not begin with a slash. Write /%(path)s.") % {"path": path}
    if len(paths) > MOST_PATTERNS or any(len(path) > LONGEST_PATTERN for path in paths):
        most = {"number": MOST_PATTERNS, "length": LONGEST_PATTERN}
        yield "path", _("Enter at most %(number)d paths, each of at most %(length)d characters.") % most
    entries = [line.strip() for line in row["descriptor"].splitlines() if line.strip()]
    if entries:
        try:
            DescriptorPattern.parse(entries)
        except ValueError:
            yield (
                "descriptor",
                _(
                    "Write one entry per line: generic_key=login, path=/api/* or, for any value, remote_address. "
                    "At most %(number)d, each of at most %(length)d characters."
                )
                % {"number": MOST_ENTRIES, "length": LONGEST_ENTRY},
            )
    if row["exempt"] and not paths and not row["route"] and not entries:
        yield "path", _("An exemption needs a path, a route or a descriptor; otherwise everything would be exempt.")


def _key(row: Mapping[str, Any]) -> Iterator[Misfit]:
    parts = [part.strip() for part in row["key"].split("+")]
    if not row["key"]:
        is_of_call_site = row["group"] == row["name"] or not (row["path"] or row["route"] or row["group"])
        if not is_of_call_site and not row["exempt"]:
            yield "key", _("Choose who is counted, for example ip: the client address.")
        return
    if ALL_CALLERS in parts and len(parts) > 1:
        yield "key", _("“all” counts everybody together. Use it alone, or leave it out.")
    if parts == [ALL_CALLERS] and row["ban_after"]:
        yield "ban_after", _("A limit for everybody together cannot ban: the ban would refuse every client.")
    for part in parts:
        if "." in part and ":" not in part:
            yield "key", _("“%(key)s” names code, which only rules of the settings can do.") % {"key": part}
            continue
        try:
            compile_key(part)
        except LimitError:
            problem = _(
                "“%(key)s” is no key. Write for example ip, user_or_ip or post:username, and + between several."
            )
            yield "key", problem % {"key": part}
            continue
        if row["descriptor"] and (missing := unread(part, _descriptor_keys(row["descriptor"]))):
            problem = _("The descriptor needs an entry %(entry)s to be counted by “%(key)s”.")
            none = _("A descriptor cannot be counted by “%(key)s”.")
            entry = entry_of(missing[0])
            yield "key", (problem if entry else none) % {"key": missing[0], "entry": entry}


def _descriptor_keys(text: str) -> list[str]:
    return [line.partition("=")[0].strip() for line in text.splitlines()]


def _rates(row: Mapping[str, Any]) -> Iterator[Misfit]:
    if row["limit"] is None:
        return
    written = [rate_text(row["limit"], row["period"], row["unit"]), *row["more_rates"]]
    if len(written) > MOST_RATES:
        yield "more_rates", _("A rule has at most %(number)d limits.") % {"number": MOST_RATES}
    rates: dict[int, str] = {}
    for number, text in enumerate(written):
        field = "more_rates" if number else "limit"
        try:
            rate = Rate.parse(text)
        except LimitError:
            if not WRITTEN.fullmatch(text):
                raise
            yield field, rate_problem(text)
            continue
        same = rates.setdefault(rate.period_us, text)
        if same is not text:
            problem = _("“%(one)s” and “%(other)s” are for the same period. Keep the smaller one.")
            yield field, problem % {"one": same, "other": text}
        if rate.is_slots != algorithms.find(_algorithm(row)).holds:
            yield field, _other_rate(row, rate)
        if rate.is_slots and rate.limit > MOST_SLOTS:
            yield field, _("At most %(most)d at once.") % {"most": MOST_SLOTS}
        if rate.is_slots and len(written) > 1:
            yield "more_rates", _("A limit of so many at once stands alone. Make another rule for rates.")
        if _algorithm(row) == "sliding_log" and rate.limit > LONGEST_LOG:
            yield field, _("The algorithm %(algorithm)s takes limits up to %(most)d. %(others)s take any.") % {
                "algorithm": algorithm_name("sliding_log"), "most": LONGEST_LOG,
                "others": f"{algorithm_name('sliding_window')}, {algorithm_name('token_bucket')}",
            }  # fmt: skip
        if row["align"] in calendar.PERIODS and _algorithm(row) == "fixed_window":
            shortest, longest = calendar.PERIODS[row["align"]]
            if not shortest <= rate.period_us <= longest:
                period = {"day": _("1 day"), "week": _("1 week"), "month": _("28 to 31 days")}[row["align"]]
                problem = _("The window starts “%(align)s”: then the limit is for %(period)s, not “%(rate)s”.")
                align = _(OPTIONS["align"].names[row["align"]])
                yield "align", problem % {"align": align, "period": period, "rate": text}


def _other_rate(row: Mapping[str, Any], rate: Rate) -> str:
    values = {"algorithm": algorithm_name("concurrency"), "unit": RateFields.Unit.AT_ONCE.label}
    if rate.is_slots:
        return _("“%(unit)s” needs the algorithm %(algorithm)s.") % values
    return _("The algorithm %(algorithm)s needs “%(unit)s” as the unit of its limit.") % values


def _algorithm(row: Mapping[str, Any]) -> str:
    return algorithms.find(row["algorithm"] or conf.ALGORITHM).name


def _options(row: Mapping[str, Any]) -> Iterator[Misfit]:
    algorithm = _algorithm(row)
    given = [name for name in OPTIONS if name in row and row[name] not in (None, "", False, OPTIONS[name].default)]
    taken = algorithms.find(algorithm).options
    for name in given:
        if not OPTIONS[name].is_general and name not in taken:
            others = [algorithm_name(other) for other, of in algorithms.ALGORITHMS.items() if name in of.options]
            yield name, _("“%(option)s” needs the algorithm %(algorithms)s.") % {
                "option": label(name), "algorithms": _(" or ").join(others),
            }  # fmt: skip
    for name in given:
        for other in OPTIONS[name].excludes:
            if other in given:
                problem = _("“%(option)s” and “%(other)s” contradict each other. Leave one of them empty.")
                yield name, problem % {"option": label(name), "other": label(other)}
        for other in OPTIONS[name].needs:
            if other not in given:
                problem = _("“%(option)s” needs “%(other)s” as well.")
                yield other, problem % {"option": label(name), "other": label(other)}
    for name in [name for name in given if OPTIONS[name].check is duration]:
        if not _is_duration(row[name]):
            yield name, _("“%(text)s” is no time. Write for example 10m, 1h or 7d.") % {"text": row[name]}
    if "ban_for" in given:
        yield from _ban_lengths(row["ban_for"])
    if "time_zone" in given and "time_zone" in taken:
        try:
            calendar.zone(row["time_zone"])
        except LimitError:
            problem = _("There is no time zone “%(name)s”. Write one such as Europe/Berlin.")
            yield "time_zone", problem % {"name": row["time_zone"]}
        if row["align"] not in calendar.PERIODS:
            yield "time_zone", _("A time zone is for windows that start each day, week or month.")
    try:
        read_weights(row.get("split"))
    except WeightError as error:
        problem = _("“%(entry)s” is not a weight. Write “equal”, or each host once, for example web-1=3, web-2=1.")
        yield "split", problem % {"entry": error.entry}
    if "lease" in given and algorithm == "token_bucket" and (row["burst"] or row["limit"] or 0) < 2:
        yield "lease", _("A lease needs a burst of at least 2.")


def _ban_lengths(text: str) -> Iterator[Misfit]:
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) > MOST_LENGTHS:
        yield "ban_for", _("Enter at most %(most)d durations.") % {"most": MOST_LENGTHS}
    for number, entry in enumerate(entries, start=1):
        if not _is_duration(entry):
            problem = _("Entry %(number)d, “%(text)s”, is no time. Write for example 10m, or several: 10m,1h,1d.")
            yield "ban_for", problem % {"number": number, "text": entry}


def _is_duration(text: str) -> bool:
    try:
        duration(text)
    except ValueError:
        return False
    return True
