"""The published clients of the gateway: the limits that each may use."""

from __future__ import annotations

from typing import NamedTuple


class Client(NamedTuple):
    """A service that may use limits of these names.

    - `limits`: the names; a star at the end matches any text;
    - `may_refund`: whether it may refund units.
    """

    name: str
    limits: tuple[str, ...]
    may_refund: bool = False

    def may_ask(self, name: str) -> bool:
        """Return whether the client may use the limit of that name.

        >>> mailer = Client("mailer", ("mail*", "sms"))
        >>> [mailer.may_ask(name) for name in ("mail.daily", "sms", "sms2")]
        [True, True, False]
        """
        return any(
            name.startswith(limit[:-1]) if limit.endswith("*") else name == limit
            for limit in self.limits
        )
