"""`{% load ratelimit_words %}`: numbers and names in words."""

from django import template

from ..identity.names import name_words
from ..operations.formatting import (
    breakable,
    milliseconds_words,
    number_words,
    rate_words,
    readable,
    share_words,
)

register = template.Library()
for words in (
    breakable,
    milliseconds_words,
    name_words,
    number_words,
    rate_words,
    readable,
    share_words,
):
    register.filter(words)
