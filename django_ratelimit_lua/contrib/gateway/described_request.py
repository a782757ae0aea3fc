"""The request that a proxy describes: its paths, its user, and the check that the proxy is trusted.

A client can write any header. So a request is accepted only from a trusted proxy
(`RATELIMIT_TRUSTED_PROXIES`) with a secret (`RATELIMIT_GATEWAY_SECRET`). Each proxy, configured
as `manage.py ratelimit proxy` prints it, overwrites the headers of its dialect.

A rule matches a path, and the server behind the proxy decides which path a request has. So every
path that a common server would read is checked. Otherwise a client could write `/login/` in a way
that avoids its limit.
"""

from __future__ import annotations

import io
import logging
import re
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from django.contrib.auth import get_user_model
from django.core.exceptions import (
    BadRequest,
    ImproperlyConfigured,
    ObjectDoesNotExist,
    ValidationError,
)
from django.core.handlers.wsgi import WSGIRequest
from django.db import DatabaseError, close_old_connections
from django.http import HttpHeaders

from ...conf import conf
from ...identity.address import find_forwarded_address, is_trusted_peer
from ...identity.request_state import request_state
from .conf import CHECK, DIALECTS, Dialect, settings
from .http import Meta
from .secrets import SECRET_KEY, authenticate, log_once

MAX_URI_LENGTH = 16 * 1024
"""Maximum number of characters of a URI; common servers take 4 to 8 KiB."""
MAX_USER_LENGTH = 255
_METHOD = re.compile(r"[!#$%&'*+.^`|~\w-]{1,32}", re.ASCII)
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_AFTER_HOST = re.compile(r"\.?(:[0-9]*)?\Z")
"""The final dot and the port that a client may add to a host: they name the same site."""
_UNTRUSTED = "The gateway refused a proxy: its address is not in RATELIMIT_TRUSTED_PROXIES: %s."
_to_key = HttpHeaders.to_wsgi_name
_HIDDEN = {SECRET_KEY, _to_key("Forwarded"), _to_key("Host"), _to_key("Content-Length")}
_HIDDEN.update(_to_key(name) for dialect in DIALECTS.values() for name in dialect.headers)
"""Headers that the described request does not have: those of the proxy, and those of its own
request.
"""

MAX_SEGMENTS = 100
"""Maximum number of segments of an ambiguous path."""
MAX_PATH_LENGTH = 4096
"""Maximum number of characters of an ambiguous path."""
_AMBIGUOUS = re.compile(r"[;\\#]|%2f|%5c|//|/\.|/%2e|^[^/]|^$", re.IGNORECASE)
_PARAMETERS = "(?:;|%3b)[^/]*"
_REPLACEMENTS = (
    ("#.*", ""),
    (_PARAMETERS, ""),
    ("%2f", "/"),
    (r"\\", "/"),
    ("%5c", "/"),
    (_PARAMETERS, ""),
)
"""What some servers replace in an encoded path, in this order, and others do not."""
_FLAGS = re.IGNORECASE | re.DOTALL


class DescribedRequest(WSGIRequest):
    """A request of another server.

    - `possible_paths`: the paths that different servers may read from the request.
    """

    possible_paths: tuple[str, ...] = ()
    user: Any

    def __init__(self, environ: dict[str, object]) -> None:
        super().__init__(environ)
        self.path = self.path_info  # FORCE_SCRIPT_NAME is for the URLs of this site.


def is_trusted_proxy(meta: Meta) -> bool:
    """Return whether a request comes from a trusted proxy with a secret. Logs the first refusal."""
    peer = meta.get("REMOTE_ADDR")
    trusted = conf.TRUSTED_PROXIES
    # With a number of proxies, the peer is the nearest of them.
    trusts_peer = isinstance(trusted, int) and trusted > 0
    if not trusts_peer and not is_trusted_peer(peer):
        log_once(_UNTRUSTED, logging.WARNING, _UNTRUSTED, peer)
        return False
    return authenticate(meta.get(SECRET_KEY, ""), CHECK, peer) is not None


def read_described_request(meta: Meta) -> DescribedRequest:
    """Return the request that a trusted proxy describes.

    Args:
        meta: The `META` of the proxy's own request.

    Raises:
        BadRequest: The description is incomplete or invalid.
    """
    dialect = DIALECTS[settings.GATEWAY_DIALECT or "nginx"]
    method, path, query = _read_request_line(meta, dialect)
    try:
        paths = find_possible_paths(path)
    except ValueError as error:
        raise BadRequest(f"{dialect.uri} has {error}") from None
    request = DescribedRequest(_build_environ(meta, dialect, method, paths[0], query))
    # Only now: Django would read the query by the charset that a client names there, and fail by
    # some of them.
    request.META["CONTENT_TYPE"] = meta.get("CONTENT_TYPE", "")
    others = [other.encode("latin-1").decode(errors="replace") for other in paths[1:]]
    request.possible_paths = (request.path_info, *others)
    state = request_state(request)
    state.is_route_resolved = True  # The URLs of this site are not that server's.
    state.is_wait_measured = True  # It did not wait for this site.
    if settings.GATEWAY_USER_HEADER is not None:
        user = meta.get(_to_key(settings.GATEWAY_USER_HEADER), "").strip()
        log_in(request, ReportedUser(user))
    return request


def _read_request_line(meta: Meta, dialect: Dialect) -> tuple[str, str, str]:
    """Return the method, the encoded path and the query. Raises `BadRequest`."""
    method = _get_required(meta, dialect.method)
    uri = _get_required(meta, dialect.uri)
    absolute = _ABSOLUTE.match(uri)
    if absolute:
        uri = uri[absolute.end() :] or "/"
    is_uri = uri.startswith(("/", "?", "*")) and len(uri) <= MAX_URI_LENGTH
    if not _METHOD.fullmatch(method) or not is_uri:
        raise BadRequest(f"{dialect.method} is not a method, or {dialect.uri} is not a URI")
    path, _mark, query = uri.partition("?")
    return method, path, query


def _build_environ(
    meta: Meta, dialect: Dialect, method: str, path: str, query: str
) -> dict[str, object]:
    """Return the WSGI environment of the described request, with the headers of the client."""
    address = _read_address(meta, dialect)
    host = meta.get(_to_key(dialect.host), "")  # HTTP/1.0 has none.
    environ: dict[str, object] = {
        name: value
        for name, value in meta.items()
        if name.startswith("HTTP_") and name not in _HIDDEN
    }
    environ |= {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SCRIPT_NAME": "",
        "HTTP_HOST": _AFTER_HOST.sub("", host.lower()),
        "REMOTE_ADDR": address,
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }
    if isinstance(conf.IP_META_KEY, str):
        environ[conf.IP_META_KEY] = address
    return environ


def _get_required(meta: Meta, header: str) -> str:
    """Return the value of a header. Raises `BadRequest` if it is missing."""
    value: str | None = meta.get(_to_key(header))
    if value is None:
        raise BadRequest(
            f"The header {header} is missing: configure the proxy as `manage.py ratelimit "
            f"proxy {settings.GATEWAY_DIALECT}` prints"
        )
    return value


def _read_address(meta: Meta, dialect: Dialect) -> str:
    """Return the client's full address. It is masked when it is counted."""
    text = _get_required(meta, dialect.address)
    trusted = conf.TRUSTED_PROXIES
    if not dialect.is_chain or trusted is None:
        return text
    client = find_forwarded_address(meta.get("REMOTE_ADDR"), text, dialect.address, trusted)
    return str(client.address or client.network or "")


class ReportedUser:
    """The user that a proxy reports, without a session, and perhaps without a user table.

    - `pk`: the primary key in the database's form, so that a user has the same identity as in
      Django's views; a value that is not a valid primary key stays a string. Without one, no user
      is signed in.
    """

    is_staff = False

    def __init__(self, text: str) -> None:
        self.is_authenticated = self.is_active = bool(text)
        self.is_anonymous = not text
        self.pk: Any = None
        if text:
            self.pk = text[:MAX_USER_LENGTH]
            with suppress(ValidationError, ValueError, ImproperlyConfigured):
                self.pk = get_user_model()._meta.pk.to_python(self.pk)

    def __str__(self) -> str:
        return str(self.pk)


def log_in(request: Any, user: ReportedUser) -> None:
    """Set the user of a request, as Django's middleware does."""

    async def auser() -> Any:
        return request.user

    request.user = user
    request.auser = auser


def load_user(request: Any) -> None:
    """Load the reported user from the database, because a rule uses the user's groups.

    An unknown user has no groups, and no user is signed in while the database is unavailable. This
    function blocks.
    """
    if not isinstance(request.user, ReportedUser) or request.user.is_anonymous:
        return
    # The gateway's own server sends no signal with a request, by which Django does so.
    close_old_connections()
    try:
        request.user = get_user_model()._default_manager.get(pk=request.user.pk)
    except (ObjectDoesNotExist, ValidationError, ValueError, OverflowError, ImproperlyConfigured):
        pass
    except DatabaseError as error:
        text = "The groups of a user that a proxy reports cannot be read: %s."
        log_once(text, logging.ERROR, text, error)


def find_possible_paths(path: str) -> tuple[str, ...]:
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

    Raises `ValueError` for an ambiguous path that is longer than `MAX_PATH_LENGTH`, or has more
    than `MAX_SEGMENTS`.

    >>> find_possible_paths("/api/v1/")
    ('/api/v1/',)
    >>> find_possible_paths("/x/..;/api")
    ('/x/..;/api', '/api')
    >>> sorted(find_possible_paths(r"/x/..\api"))
    ['/api', '/x/..\\api']
    """
    written = path.encode("latin-1", "replace").decode("latin-1")
    if not _AMBIGUOUS.search(written):
        return (_decode(written),)
    separators = re.findall(r"[/\\]|%2f|%5c", written, _FLAGS)
    if len(written) > MAX_PATH_LENGTH or len(separators) > MAX_SEGMENTS:
        raise ValueError(
            f"an ambiguous path of more than {MAX_SEGMENTS} segments or {MAX_PATH_LENGTH} "
            "characters"
        )
    encoded = {re.sub("%2e", ".", written, flags=_FLAGS)}
    for pattern, replacement in _REPLACEMENTS:
        encoded |= {re.sub(pattern, replacement, variant, flags=_FLAGS) for variant in encoded}
    sent = _decode(written.partition("#")[0])
    paths = [remove_dot_segments(sent), sent]
    for variant in sorted(encoded):
        paths.append(_decode(remove_dot_segments(variant)))
        paths.append(_decode(remove_dot_segments(variant, removes_empty=False)))
    return tuple(dict.fromkeys(paths))


def _decode(path: str) -> str:
    return unquote_to_bytes(path.encode("latin-1")).decode("latin-1")


def remove_dot_segments(path: str, *, removes_empty: bool = True) -> str:
    """Remove the segments `.` and `..` from a path (RFC 3986, 5.2.4).

    With `removes_empty`, empty segments are removed as well, as most servers do.

    >>> remove_dot_segments("/static/../api//./v1/")
    '/api/v1/'
    >>> remove_dot_segments("/.."), remove_dot_segments("")
    ('/', '/')
    >>> remove_dot_segments("/api//../v1", removes_empty=False), remove_dot_segments("/api//../v1")
    ('/api/v1', '/v1')
    """
    if "//" not in path and "/." not in path and path.startswith("/"):
        return path
    segments: list[str] = []
    parts = path.removeprefix("/").split("/")
    for part in parts:
        if part == "..":
            del segments[-1:]
        elif part != "." and (part or not removes_empty):
            segments.append(part)
    # A path to a folder keeps its final slash; with empty segments, the last one is that slash.
    ends_with_slash = parts[-1] in (".", "..") or (removes_empty and not parts[-1])
    if segments and ends_with_slash:
        segments.append("")
    return "/" + "/".join(segments)
