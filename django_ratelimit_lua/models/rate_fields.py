"""Transitional: goes with its last importer."""

from ..rules.errors import RuleError


def problem_text(error):
    return error.words() if isinstance(error, RuleError) else RuleError.of("", error).words()


def written(rate):
    return str(rate)
