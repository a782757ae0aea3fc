"""`proxy nginx|traefik|caddy|envoy|envoy-grpc`: print the configuration of a proxy."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError
from django.urls import NoReverseMatch, reverse

from ....limits.call import MAX_HOLD_US
from ....limits.rate import SECOND
from ....management.arguments import require_urlconf
from ....management.verbs import Printer, argument, verb
from ....models import RateLimitRule
from ....publishing.publish import primary
from ....rules.rule import RuleError
from ....rules.ruleset import settings_rules
from ..conf import settings as gateway_settings
from ..proxies import BESIDE, DEFAULT_TIMEOUT, FILES, GRPC, configuration, grpc_configuration


@verb(
    "proxy",
    "print the configuration of a proxy that asks the gateway of this site about every request",
    argument("proxy", choices=[*FILES, GRPC], help="which proxy"),
    argument("--listen", default="0.0.0.0:80", help="where the proxy listens: host:port"),
    argument("--upstream", default="127.0.0.1:3000", help="the service behind it: host:port"),
    argument(
        "--gateway",
        help="this site, as the proxy reaches it: host:port; 127.0.0.1:8000, over gRPC "
        "127.0.0.1:8081",
    ),
    argument(
        "--fail",
        choices=("open", "closed"),
        default="closed",
        help="what becomes of requests while the gateway does not answer: they go on, or are "
        "answered 503",
    ),
    argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT,
        help="seconds that the proxy waits for the gateway; longer than RATELIMIT_TIMEOUT, and "
        "than any rule makes "
        "clients wait. Traefik takes it with --fail open only, and waits 30 s otherwise",
    ),
    argument(
        "--beside",
        default=BESIDE,
        help="where traefik listens for itself, which it has to for --fail open: host:port",
    ),
    argument(
        "--user",
        default="",
        help="what goes into RATELIMIT_GATEWAY_USER_HEADER, in the words of the proxy; for "
        "traefik, the name of "
        "the middleware that sets it. Without it, no user is known to be logged in",
    ),
)
def print_proxy(command: Printer, options: dict[str, Any]) -> None:
    proxy, user, timeout = options["proxy"], options["user"], options["timeout"]
    wait = _longest_wait()
    if wait >= timeout:
        text = (
            "A rule makes clients wait for up to {:g} s, and the proxy gives up after {:g} s: "
            "see --timeout."
        )
        command.stderr.write(text.format(wait, timeout))
    if proxy == GRPC:
        _print_grpc(command, options)
        return
    require_urlconf()
    try:
        path = reverse("ratelimit-check")
    except NoReverseMatch:
        raise CommandError(
            "The gateway has no URLs. Add to the URLs: "
            'path("ratelimit/", include("django_ratelimit_lua.contrib.gateway.urls"))'
        ) from None
    if proxy != gateway_settings.GATEWAY_DIALECT:
        command.stderr.write(
            f'Set RATELIMIT_GATEWAY_DIALECT = "{proxy}": it is '
            f"{gateway_settings.GATEWAY_DIALECT!r}."
        )
    if user and gateway_settings.GATEWAY_USER_HEADER is None:
        raise CommandError("Set RATELIMIT_GATEWAY_USER_HEADER: without it, the user is not used.")
    try:
        text = configuration(
            proxy,
            listen=options["listen"],
            upstream=options["upstream"],
            gateway=options["gateway"] or "127.0.0.1:8000",
            path=path,
            fail=options["fail"],
            user=user,
            beside=options["beside"],
            timeout=timeout,
        )
    except ValueError as error:
        raise CommandError(f"{error}.") from None
    command.say(text)


def _print_grpc(command: Printer, options: dict[str, Any]) -> None:
    if options["user"]:
        raise CommandError("Over gRPC, a descriptor says who the user is.")
    try:
        text = grpc_configuration(
            listen=options["listen"],
            upstream=options["upstream"],
            gateway=options["gateway"] or "127.0.0.1:8081",
            fail=options["fail"],
            timeout=options["timeout"],
        )
    except ValueError as error:
        raise CommandError(f"{error}.") from None
    command.say(text)


def _longest_wait() -> float:
    """The seconds that a rule of the settings or the admin makes a client wait at most."""
    rules = list(settings_rules())
    with suppress(DatabaseError):
        for row in RateLimitRule.objects.using(primary()).prefetch_related("tiers"):
            with suppress(RuleError):
                rules.append(row.compiled())
    templates = [rule.template for rule in rules if rule.template is not None]
    templates += [tier for template in templates for _group, tier in template.tiers]
    waits = [limit.max_wait_us for template in templates for limit in template.limits("rule")]
    return max([MAX_HOLD_US if wait < 0 else wait for wait in waits], default=0) / SECOND
