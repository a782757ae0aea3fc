"""The paths that different servers may read from one request.

A rule matches a path, and the server behind the proxy decides which path a request has. So every
path that a common server would read is checked. Otherwise a client could write `/login/` in a way
that avoids its limit.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

MAX_SEGMENTS = 100
"""Maximum number of segments of a path that can be read in several ways."""
MAX_LENGTH = 4096
"""Maximum number of its characters."""
_SEVERAL = re.compile(r"[;\\#]|%2f|%5c|//|/\.|/%2e|^[^/]|^$", re.IGNORECASE)
_PARAMETERS = "(?:;|%3b)[^/]*"
_CHOICES = (
    ("#.*", ""),
    (_PARAMETERS, ""),
    ("%2f", "/"),
    (r"\\", "/"),
    ("%5c", "/"),
    (_PARAMETERS, ""),
)
"""What some servers replace in a path that is still encoded, in this order, and others do not."""
_FLAGS = re.IGNORECASE | re.DOTALL


def readings(path: str) -> tuple[str, ...]:
    r"""Return the paths that servers may read from a path, without duplicates.

    The given path and the results are bytes, written as Latin-1 letters. The first result is the
    path that most servers read: decoded, and without empty and dot segments. The others are the
    path as it was sent, and the results of these differences:

    - `%2F` and `%5C` separate segments, or are a part of them (RFC 3986, 2.2; Node's `URL`);
    - `\` separates segments (the URL Standard of WHATWG, and with it Node; IIS), or does not;
    - the text after `;` in a segment is its parameters and is removed (servlets: Tomcat, Jetty), or
      is not;
    - the text after `#` is removed, or is not;
    - empty segments are kept (the URL Standard), or are not.

    Raises `ValueError` for an ambiguous path that is longer than `MAX_LENGTH`, or has more than
    `MAX_SEGMENTS`.

    >>> readings("/api/v1/")
    ('/api/v1/',)
    >>> readings("/x/..;/api")
    ('/x/..;/api', '/api')
    >>> sorted(readings(r"/x/..\api"))
    ['/api', '/x/..\\api']
    """
    path = path.encode("latin-1", "replace").decode("latin-1")
    if not _SEVERAL.search(path):
        return (_decode(path),)
    if len(path) > MAX_LENGTH or len(re.findall(r"[/\\]|%2f|%5c", path, _FLAGS)) > MAX_SEGMENTS:
        raise ValueError(
            f"an ambiguous path of more than {MAX_SEGMENTS} segments or {MAX_LENGTH} characters"
        )
    plain = _decode(path.partition("#")[0])
    ways = {re.sub("%2e", ".", path, flags=_FLAGS)}
    for pattern, replacement in _CHOICES:
        ways |= {re.sub(pattern, replacement, way, flags=_FLAGS) for way in ways}
    found = dict.fromkeys((normalise_path(plain), plain))
    for way in sorted(ways):
        for merges in (True, False):
            found[_decode(normalise_path(way, merges=merges))] = None
    return tuple(found)


def _decode(path: str) -> str:
    return unquote_to_bytes(path.encode("latin-1")).decode("latin-1")


def normalise_path(path: str, *, merges: bool = True) -> str:
    """Remove dot segments (RFC 3986, 5.2.4) and, with `merges`, empty ones, as most servers do.

    >>> normalise_path("/static/../api//./v1/"), normalise_path("/.."), normalise_path("")
    ('/api/v1/', '/', '/')
    >>> normalise_path("/api//../v1", merges=False), normalise_path("/api//../v1")
    ('/api/v1', '/v1')
    """
    if "//" not in path and "/." not in path and path.startswith("/"):
        return path
    segments: list[str] = []
    parts = path.removeprefix("/").split("/")
    for part in parts:
        if part == "..":
            del segments[-1:]
        elif part != "." and (part or not merges):
            segments.append(part)
    if parts[-1] in ("", ".", "..") and segments and (merges or parts[-1]):
        segments.append("")
    return "/" + "/".join(segments)
