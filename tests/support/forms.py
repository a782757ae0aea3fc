"""What a browser sends for the form of a page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class _Form(HTMLParser):
    """The values of the fields of a page, without those in templates."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._open: dict[str, Any] = {}
        self._templates = 0
        self._text = ""
        self.feed(html)

    def _add(self, name: str | None, value: str | None) -> None:
        if name and not self._templates:
            self.values.setdefault(name, []).append(value or "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._templates += tag == "template"
        if tag == "input" and given.get("type") in ("checkbox", "radio"):
            if "checked" in given:
                self._add(given.get("name"), given.get("value", "on"))
        elif tag == "input" and given.get("type") != "submit":
            self._add(given.get("name"), given.get("value"))
        elif tag in ("select", "textarea"):
            self._open = {"name": given.get("name"), "chosen": None}
            self._text = ""
        elif tag == "option" and (self._open.get("chosen") is None or "selected" in given):
            self._open["chosen"] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        self._templates -= tag == "template"
        if tag == "select":
            self._add(self._open["name"], self._open["chosen"])
        elif tag == "textarea":
            self._add(self._open["name"], self._text.removeprefix("\n").replace("\n", "\r\n"))


def sent_by(page: Any, form: str = "_form") -> dict[str, list[str]]:
    """Return the data that a browser sends for a form of a page, without pressed buttons.

    The form is found by the end of its id.
    """
    html = page.content.decode()
    start = html.index(f'{form}"')
    return _Form(html[start : html.index("</form>", start)]).values
