"""The list of pages for language models."""

from __future__ import annotations

import re

from docs.llms import DOCS, llms_text, summary


def test_the_list_has_every_page_of_the_documentation() -> None:
    """Each page except the front page is in the list once, with its title and its source."""
    pages = [path for path in DOCS.rglob("*.rst") if "_build" not in path.parts]
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in pages} - {"index"}
    listed = re.findall(r"^- \[.+\]\(.*_sources/(\S+)\.rst\.txt\)", llms_text(), re.MULTILINE)
    assert sorted(listed) == sorted(names)
    assert llms_text().startswith("# django_ratelimit_lua\n\n> Put `@ratelimit`")


def test_a_page_is_described_by_its_first_sentence_or_its_headings() -> None:
    """A summary has no markup of reStructuredText."""
    page = "Title\n=====\n\nSee :doc:`the limit <a/b>` and\n``x.y``. More.\n"
    assert summary(page) == "See the limit and `x.y`."
    assert summary("Title\n=====\n\nFirst\n-----\n\nSecond\n------\n\nText.\n") == "First; Second"
