"""`{% load ratelimit_words %}`: numbers and names in words."""

from django import template

from ..identity.names import name_words
from ..operations.formatting import (
    breakable,
    milliseconds_words,
    moment_element,
    number_words,
    rate_words,
    readable,
    share_words,
)
from ..rules import describe
from ..web.refusal import duration_words, in_time

register = template.Library()
for words in (
    breakable,
    duration_words,
    in_time,
    milliseconds_words,
    moment_element,
    name_words,
    number_words,
    rate_words,
    readable,
    share_words,
):
    register.filter(words)
register.filter("rate", describe.rate_words)
