"""Errors as problem documents (RFC 9457)."""

from __future__ import annotations

import json

from ...web.refusal import ErrorDetails
from ...web.responses import PROBLEM
from .answer import Answer


class ProblemError(Exception, ErrorDetails):
    """The request cannot be answered: with that `status`, because of `text`.

    `more`: more headers of the answer.
    """

    def __init__(self, status: int, text: str, retry_after: int | None = None, **more: str) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after
        self._more = {name.replace("_", "-"): value for name, value in more.items()}

    def detail(self) -> str:
        return str(self)

    @property
    def answer(self) -> Answer:
        headers = {"Content-Type": PROBLEM, **self.headers(), **self._more}
        return Answer(self.status, headers, json.dumps(self.problem()).encode())
