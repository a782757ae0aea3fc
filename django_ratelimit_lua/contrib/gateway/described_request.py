"""The request that a proxy describes, and the trust in it: which proxies, and which headers.

A client can write any header. So only a trusted proxy (`RATELIMIT_TRUSTED_PROXIES`) with the secret
(`RATELIMIT_GATEWAY_SECRET`) is used, and each proxy, configured as `manage.py ratelimit proxy`
prints it, overwrites the headers of its dialect.
"""

from __future__ import annotations

import io
import itertools
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from hmac import compare_digest
from typing import Any

from django.core.exceptions import BadRequest, RequestDataTooBig
from django.core.handlers.wsgi import WSGIRequest, get_path_info
from django.http import HttpHeaders

from ...conf import conf
from ...identity.address import believed
from ...identity.forwarded import parse_address
from ...identity.request_state import request_state
from ...identity.request_values import LINES
from .conf import settings as gateway_settings
from .dialects import DIALECTS, Dialect
from .paths import readings
from .users import STRANGER, VouchedUser, log_in

logger = logging.getLogger("django_ratelimit_lua")
Meta = Mapping[str, Any]
"""The headers of a request and its peer, as `HttpRequest.META` has them."""
SECRET_HEADER = "X-RateLimit-Secret"
MAX_URI_LENGTH = 16 * 1024
"""Characters of a URI that are looked at; common servers take 4 to 8 KiB."""
MAX_HEADERS, MAX_HEADER_BYTES = 256, 64 * 1024
"""Header lines of a question, and bytes of all of them; common servers take 100 lines and 8 to 64
KiB.
"""
MAX_KNOWN_LENGTH = 64
"""Bytes of a header's name that is remembered."""
_METHOD = re.compile(r"[!#$%&'*+.^`|~\w-]{1,32}", re.ASCII)
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_URL = re.compile(r"https?://([\w.:\[\]-]*)(/.*)", re.ASCII | re.DOTALL)
"""The URL that ingress-nginx writes: scheme, `Host` as the client has sent it, and URI. A client
that puts a `?` into its `Host` must not move the path into the query.
"""
_AFTER_HOST = re.compile(r"\.?(:[0-9]*)?\Z")
_unheard = {"proxy": itertools.count(), "secret": itertools.count()}
_REFUSED = {
    "proxy": "it is no trusted proxy: RATELIMIT_TRUSTED_PROXIES has to name it",
    "secret": f"{SECRET_HEADER} is not there, or is none of RATELIMIT_GATEWAY_SECRET",
}


@lru_cache(maxsize=64)
def _key(header: str) -> str:
    """A header's key in `META`."""
    return HttpHeaders.to_wsgi_name(header)


_SECRET = _key(SECRET_HEADER)
_HIDDEN = {
    _key(name)
    for name in (
        *(name for dialect in DIALECTS.values() for name in dialect.headers),
        "Forwarded",
        SECRET_HEADER,
        "Host",
        "Content-Length",
    )
}
"""Headers that the described request does not have: those of the proxy, and those of its own
request.
"""


class DescribedRequest(WSGIRequest):
    """A request of another server. `readings`: its path as servers may take it, see `paths`."""

    readings: tuple[str, ...] = ()
    user: Any

    def __init__(self, meta: dict[str, Any]) -> None:
        # Not as WSGIRequest does it, which finds out with much ado that there is no body and no
        # script.
        self.environ = self.META = meta
        path: str = meta["PATH_INFO"]
        if not path.isascii():
            path = meta["PATH_INFO"] = get_path_info(meta)
        self.path = self.path_info = path
        self.method = meta["REQUEST_METHOD"].upper()
        self.content_type, self.content_params = "", {}
        self.resolver_match = None
        self._stream, self._read_started = meta["wsgi.input"], False


def meta_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of an ASGI scope, and its peer, as `HttpRequest.META` has them.

    Raises `RequestDataTooBig` for more than `MAX_HEADERS` lines or `MAX_HEADER_BYTES`.
    """
    headers = scope["headers"]
    size = sum([len(name) + len(value) for name, value in headers])
    if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise RequestDataTooBig(
            f"The request has more than {MAX_HEADERS} header lines or {MAX_HEADER_BYTES} bytes"
        )
    lines: dict[str, list[str]] = {}
    meta: dict[str, Any] = {LINES: lines}
    for name, value in headers:
        key = _known_key(name) if len(name) <= MAX_KNOWN_LENGTH else _meta_key(name)
        if key is None:
            continue
        text = value.decode("latin-1")
        if key in meta:
            lines.setdefault(key, [meta[key]]).append(text)
        else:
            meta[key] = text
    for key, values in lines.items():
        meta[key] = ("; " if key == "HTTP_COOKIE" else ",").join(values)
    if scope.get("client"):
        meta["REMOTE_ADDR"] = scope["client"][0]
    return meta


def _meta_key(header: bytes) -> str | None:
    """The key in `META` of a header as it was sent.

    None: it would be taken for one with a hyphen, which not every release of Django's passes over.
    """
    name = header.decode("latin-1").upper()
    if "_" in name:
        return None
    name = name.replace("-", "_")
    return name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"


_known_key = lru_cache(maxsize=256)(_meta_key)


def is_believed(meta: Meta) -> bool:
    """Whether a request comes from a trusted proxy, with the secret.

    If not, the log reports the reason once.
    """
    missing = "" if _is_trusted(meta.get("REMOTE_ADDR")) else "proxy"
    # All secrets are compared, whichever it is.
    given, secrets = meta.get(_SECRET, "").encode(), gateway_settings.GATEWAY_SECRET or ()
    if not sum([compare_digest(given, secret.encode()) for secret in secrets]):
        missing = missing or "secret"
    if missing and next(_unheard[missing]) == 0:
        text = "The gateway answered 403 to %s: %s. (Said once in each process.)"
        logger.warning(text, meta.get("REMOTE_ADDR"), _REFUSED[missing])
    return not missing


def _is_trusted(peer: str | None) -> bool:
    trusted = conf.TRUSTED_PROXIES
    if not isinstance(trusted, tuple):
        return bool(trusted)  # With a number of proxies, the peer is the nearest of them.
    if not peer:
        return conf.TRUSTS_SOCKET
    address = parse_address(peer)
    return address is not None and any(
        address.version == of.version and address in of for of in trusted
    )


def described(asked: Meta) -> DescribedRequest:
    """The request that a trusted proxy describes, from the `META` of its own request.

    Raises `BadRequest` if the description is incomplete.
    """
    dialect = DIALECTS[gateway_settings.GATEWAY_DIALECT or "nginx"]
    method, uri, host = (
        _said(asked, dialect.method),
        _said(asked, dialect.uri),
        asked.get(_key(dialect.host), ""),
    )
    if dialect.is_url:
        url = _URL.fullmatch(uri)
        if url is None:
            raise BadRequest(f"{dialect.uri} is no URL")
        host, uri = url.groups()
    uri = uri[absolute.end() :] or "/" if (absolute := _ABSOLUTE.match(uri)) else uri
    if (
        not _METHOD.fullmatch(method)
        or not uri.startswith(("/", "?", "*"))
        or len(uri) > MAX_URI_LENGTH
    ):
        raise BadRequest(f"{dialect.method} or {dialect.uri} is no method or URI")
    path, _mark, query = uri.partition("?")
    try:
        paths = readings(path)
    except ValueError as error:
        raise BadRequest(f"{dialect.uri} has {error}") from None
    meta: dict[str, Any] = {
        name: value
        for name, value in asked.items()
        if name.startswith("HTTP_") and name not in _HIDDEN
    }
    meta |= {
        "REQUEST_METHOD": method,
        "PATH_INFO": paths[0],
        "QUERY_STRING": query,
        "SCRIPT_NAME": "",
        "HTTP_HOST": plain_host(host),  # HTTP/1.0 knows none.
        "REMOTE_ADDR": _address(asked, dialect),
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
        LINES: asked.get(LINES)
        if gateway_settings.GATEWAY_DIALECT != "envoy"
        else None,  # Envoy joins what it passes on.
    }
    if isinstance(conf.IP_META_KEY, str):
        meta[conf.IP_META_KEY] = meta["REMOTE_ADDR"]
    found = DescribedRequest(meta)
    # Only now: Django would read the query by the charset that a client names there, and fail by
    # some of them.
    meta["CONTENT_TYPE"] = asked.get("CONTENT_TYPE", "")
    others = [other.encode("latin-1").decode(errors="replace") for other in paths[1:]]
    found.readings = (found.path_info, *others)
    request_state(found).looked_ahead = True  # The URLs of this site are not that server's.
    if gateway_settings.GATEWAY_USER_HEADER is not None:
        said = asked.get(_key(gateway_settings.GATEWAY_USER_HEADER), "").strip()
        log_in(found, VouchedUser(said) if said else STRANGER)
    return found


def plain_host(host: str) -> str:
    """A host by its name alone, as servers look for the site that it is: clients may add any port,
    and a dot.

    >>> plain_host("Shop.example.:8443"), plain_host("[::1]:80"), plain_host("")
    ('shop.example', '[::1]', '')
    """
    return _AFTER_HOST.sub("", host.lower())


def _said(asked: Meta, header: str) -> str:
    value: str | None = asked.get(_key(header))
    if value is None:
        raise BadRequest(
            f"{header} is missing, by which {gateway_settings.GATEWAY_DIALECT} describes a request"
        )
    return value


def _address(asked: Meta, dialect: Dialect) -> str:
    """The client's full address. It is masked when it is counted."""
    said, trusted = _said(asked, dialect.address), conf.TRUSTED_PROXIES
    if not dialect.is_chain or trusted is None:
        return said
    found = believed(asked.get("REMOTE_ADDR"), said, dialect.address, trusted)
    return str(found.address or found.network or "")
