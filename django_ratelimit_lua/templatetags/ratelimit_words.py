"""`{% load ratelimit_words %}`: numbers and names in words."""

from django import template

from ..operations.formatting import breakable, moment_element, number_words, readable
from ..rules import describe
from ..web.refusal import duration_words, in_time

register = template.Library()
for words in (breakable, duration_words, in_time, moment_element, number_words, readable):
    register.filter(words)
register.filter("rate", describe.rate_words)
