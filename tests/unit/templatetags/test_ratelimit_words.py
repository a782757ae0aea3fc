"""The filters for numbers and names in templates."""

from __future__ import annotations

from django.template import Context, Template


def test_template_filters_format_numbers_and_names() -> None:
    """Names are escaped, and a line break is possible after each of their parts."""
    text = (
        "{% load ratelimit_words %}{{ number|number_words }} {{ share|share_words }} {{ "
        "rate|rate_words }} "
        "{{ seconds|milliseconds_words }} {{ name|name_words|breakable }} {{ half|readable }}"
    )
    values = {
        "number": 1234,
        "share": 0.25,
        "rate": 1.96,
        "seconds": 0.005,
        "name": "<b>.c\n",
        "half": "x\ud800",
    }
    found = Template(text).render(Context(values))
    assert found == "1,234 25% 2.0 5 ms &lt;b&gt;.<wbr>c\\n x?"
