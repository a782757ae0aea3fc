"""The request that a proxy describes, and the check that the proxy is trusted.

A client can write any header. So a request is accepted only from a trusted proxy
(`RATELIMIT_TRUSTED_PROXIES`) with a secret (`RATELIMIT_GATEWAY_SECRET`). Each proxy, configured
as `manage.py ratelimit proxy` prints it, overwrites the headers of its dialect.
"""

from __future__ import annotations

import io
import logging
import re
from typing import Any

from django.core.exceptions import BadRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpHeaders

from ...conf import conf
from ...identity.address import find_forwarded_address, is_trusted_peer
from ...identity.request_state import request_state
from .conf import CHECK
from .conf import settings as gateway_settings
from .dialects import DIALECTS, Dialect
from .meta import Meta
from .paths import readings
from .secrets import SECRET_KEY, find_secret, log_once
from .users import VouchedUser, log_in

MAX_URI_LENGTH = 16 * 1024
"""Characters of a URI that are looked at; common servers take 4 to 8 KiB."""
_METHOD = re.compile(r"[!#$%&'*+.^`|~\w-]{1,32}", re.ASCII)
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_AFTER_HOST = re.compile(r"\.?(:[0-9]*)?\Z")
"""The final dot and the port that a client may add to a host: they name the same site."""
_UNTRUSTED = "The gateway refused a proxy: its address is not in RATELIMIT_TRUSTED_PROXIES: %s."
_key = HttpHeaders.to_wsgi_name
_HIDDEN = {SECRET_KEY, _key("Forwarded"), _key("Host"), _key("Content-Length")}
_HIDDEN.update(_key(name) for dialect in DIALECTS.values() for name in dialect.headers)
"""Headers that the described request does not have: those of the proxy, and those of its own
request.
"""


class DescribedRequest(WSGIRequest):
    """A request of another server.

    - `readings`: the paths that different servers may read from the request; see `paths`.
    """

    readings: tuple[str, ...] = ()
    user: Any

    def __init__(self, environ: dict[str, object]) -> None:
        super().__init__(environ)
        self.path = self.path_info  # FORCE_SCRIPT_NAME is for the URLs of this site.


def is_trusted_proxy(meta: Meta) -> bool:
    """Return whether a request comes from a trusted proxy with a secret."""
    peer = meta.get("REMOTE_ADDR")
    trusted = conf.TRUSTED_PROXIES
    # With a number of proxies, the peer is the nearest of them.
    if not (isinstance(trusted, int) and trusted) and not is_trusted_peer(peer):
        log_once(_UNTRUSTED, logging.WARNING, _UNTRUSTED, peer)
        return False
    return find_secret(meta.get(SECRET_KEY, ""), CHECK, peer) is not None


def read_described_request(meta: Meta) -> DescribedRequest:
    """Return the request that a trusted proxy describes.

    Args:
        meta: The `META` of the proxy's own request.

    Raises:
        BadRequest: The description is incomplete or invalid.
    """
    dialect = DIALECTS[gateway_settings.GATEWAY_DIALECT or "nginx"]
    method = _get_required(meta, dialect.method)
    uri = _get_required(meta, dialect.uri)
    host = meta.get(_key(dialect.host), "")  # HTTP/1.0 knows none.
    absolute = _ABSOLUTE.match(uri)
    if absolute:
        uri = uri[absolute.end() :] or "/"
    is_uri = uri.startswith(("/", "?", "*")) and len(uri) <= MAX_URI_LENGTH
    if not _METHOD.fullmatch(method) or not is_uri:
        raise BadRequest(f"{dialect.method} is not a method, or {dialect.uri} is not a URI")
    path, _mark, query = uri.partition("?")
    try:
        paths = readings(path)
    except ValueError as error:
        raise BadRequest(f"{dialect.uri} has {error}") from None
    address = _address(meta, dialect)
    environ: dict[str, object] = {
        name: value
        for name, value in meta.items()
        if name.startswith("HTTP_") and name not in _HIDDEN
    }
    environ |= {
        "REQUEST_METHOD": method,
        "PATH_INFO": paths[0],
        "QUERY_STRING": query,
        "SCRIPT_NAME": "",
        "HTTP_HOST": _AFTER_HOST.sub("", host.lower()),
        "REMOTE_ADDR": address,
        "wsgi.input": io.BytesIO(),
        "wsgi.url_scheme": "http",
    }
    if isinstance(conf.IP_META_KEY, str):
        environ[conf.IP_META_KEY] = address
    request = DescribedRequest(environ)
    # Only now: Django would read the query by the charset that a client names there, and fail by
    # some of them.
    environ["CONTENT_TYPE"] = meta.get("CONTENT_TYPE", "")
    others = [other.encode("latin-1").decode(errors="replace") for other in paths[1:]]
    request.readings = (request.path_info, *others)
    state = request_state(request)
    state.is_route_resolved = True  # The URLs of this site are not that server's.
    state.is_wait_measured = True  # It did not wait for this site.
    if gateway_settings.GATEWAY_USER_HEADER is not None:
        user = meta.get(_key(gateway_settings.GATEWAY_USER_HEADER), "").strip()
        log_in(request, VouchedUser(user))
    return request


def _get_required(meta: Meta, header: str) -> str:
    value: str | None = meta.get(_key(header))
    if value is None:
        raise BadRequest(
            f"The header {header} is missing: configure the proxy as `manage.py ratelimit "
            f"proxy {gateway_settings.GATEWAY_DIALECT}` prints"
        )
    return value


def _address(meta: Meta, dialect: Dialect) -> str:
    """Return the client's full address. It is masked when it is counted."""
    text = _get_required(meta, dialect.address)
    trusted = conf.TRUSTED_PROXIES
    if not dialect.is_chain or trusted is None:
        return text
    found = find_forwarded_address(meta.get("REMOTE_ADDR"), text, dialect.address, trusted)
    return str(found.address or found.network or "")
