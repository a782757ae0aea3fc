"""The filters for numbers and names in templates."""

from __future__ import annotations

from django.template import Context, Template


def test_template_filters_format_numbers_and_names() -> None:
    """Names are escaped, and a line break is possible after each of their parts."""
    text = (
        "{% load ratelimit_words %}"
        "{{ number|number_words }} {{ name|breakable }} {{ half|readable }}"
    )
    values = {"number": 1234, "name": "<b>.c", "half": "x\ud800"}
    found = Template(text).render(Context(values))
    assert found == "1,234 &lt;b&gt;.<wbr>c x?"
