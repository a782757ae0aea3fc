"""`proxy nginx|traefik|caddy|envoy|envoy-grpc`: print the configuration of a proxy."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.urls import NoReverseMatch, reverse

from ....management.arguments import require_urlconf
from ....management.verbs import Printer, argument, verb
from ..conf import settings as gateway_settings
from ..proxies import FILES, GRPC, configuration


@verb(
    "proxy",
    "print the configuration of a proxy that asks the gateway of this site about every request",
    argument("proxy", choices=[*FILES], help="which proxy"),
    argument("--listen", default="0.0.0.0:80", help="where the proxy listens: host:port"),
    argument("--upstream", default="127.0.0.1:3000", help="the service behind it: host:port"),
    argument(
        "--gateway",
        help="this site, as the proxy reaches it: host:port (default: 127.0.0.1:8000, over "
        "gRPC 127.0.0.1:8081)",
    ),
    argument(
        "--fail",
        choices=("open", "closed"),
        default="closed",
        help="while the gateway does not answer: pass requests on (open), or answer 503 (closed)",
    ),
    argument(
        "--timeout",
        type=float,
        default=1.0,
        help="seconds that the proxy waits for the gateway: more than RATELIMIT_TIMEOUT and "
        "any max_wait. Traefik supports it only with --fail open, and waits 30 s "
        "otherwise",
    ),
    argument(
        "--beside",
        default="127.0.0.1:8082",
        help="an internal address of Traefik, which --fail open needs: host:port",
    ),
    argument(
        "--user",
        default="",
        help="the value of RATELIMIT_GATEWAY_USER_HEADER, as the proxy's configuration writes "
        "it; for Traefik, the name of the middleware that sets it. Default: no user",
    ),
)
def print_proxy(command: Printer, options: dict[str, Any]) -> None:
    """Print the configuration. Raises `CommandError` if a setting or an option is invalid."""
    path = ""
    gateway = "127.0.0.1:8081"
    if options["proxy"] != GRPC:
        path = _check_path(command, options)
        gateway = "127.0.0.1:8000"
    elif options["user"]:
        raise CommandError("--user is not supported over gRPC: a descriptor contains the user.")
    try:
        text = configuration(options, options["gateway"] or gateway, path)
    except ValueError as error:
        raise CommandError(f"{error}.") from None
    command.say(text)


def _check_path(command: Printer, options: dict[str, object]) -> str:
    """Return the path of the check URL, and report settings that do not fit the proxy.

    Raises `CommandError` if the URL or a required setting is missing.
    """
    require_urlconf()
    try:
        path = reverse("ratelimit-check")
    except NoReverseMatch:
        raise CommandError(
            'The URLs of the gateway are missing. Add to urlpatterns: path("ratelimit/", '
            'include("django_ratelimit_lua.contrib.gateway.urls"))'
        ) from None
    proxy = options["proxy"]
    dialect = gateway_settings.GATEWAY_DIALECT
    if proxy != dialect:
        command.stderr.write(f'Set RATELIMIT_GATEWAY_DIALECT = "{proxy}": it is {dialect!r}.')
    if options["user"] and gateway_settings.GATEWAY_USER_HEADER is None:
        raise CommandError("--user needs RATELIMIT_GATEWAY_USER_HEADER, which is not set.")
    return path
