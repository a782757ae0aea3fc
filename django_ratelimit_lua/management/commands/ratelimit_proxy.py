"""`manage.py ratelimit_proxy nginx|traefik|caddy|envoy|envoy-grpc`: how a proxy asks the gateway, as it is told."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.urls import NoReverseMatch, reverse

from ...conf import conf
from ...gateway.proxies import BESIDE, FILES, GRPC, configuration, grpc_configuration
from ..arguments import require_urlconf


class Command(BaseCommand):
    help = "Prints the configuration of a proxy that asks the gateway of this site about every request."

    def add_arguments(self, parser: CommandParser) -> None:
        """The proxy, and where everything is."""
        parser.add_argument("proxy", choices=[*FILES, GRPC], help="which proxy")
        parser.add_argument("--listen", default="0.0.0.0:80", help="where the proxy listens: host:port")
        parser.add_argument("--upstream", default="127.0.0.1:3000", help="the service behind it: host:port")
        parser.add_argument(
            "--gateway", help="this site, as the proxy reaches it: host:port; 127.0.0.1:8000, over gRPC 127.0.0.1:8081"
        )
        parser.add_argument(
            "--fail", choices=("open", "closed"), default="closed",
            help="what becomes of requests while the gateway does not answer: they go on, or are answered 503",
        )  # fmt: skip
        parser.add_argument(
            "--beside", default=BESIDE,
            help="where traefik listens for itself, which it has to for --fail open: host:port",
        )  # fmt: skip
        parser.add_argument(
            "--user", default="",
            help="what goes into RATELIMIT_GATEWAY_USER_HEADER, in the words of the proxy; for traefik, the name of "
            "the middleware that sets it. Without it, nobody is known to be logged in",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        """Print it."""
        proxy, user = options["proxy"], options["user"]
        if proxy == GRPC:
            self._print_grpc(**options)
            return
        require_urlconf()
        try:
            path = reverse("ratelimit-check")
        except NoReverseMatch:
            raise CommandError(
                'There is no gateway: add path("ratelimit/", include("django_ratelimit_lua.gateway.urls")) to the URLs.'
            ) from None
        if proxy != conf.GATEWAY_DIALECT:
            self.stderr.write(f'Set RATELIMIT_GATEWAY_DIALECT = "{proxy}": it is {conf.GATEWAY_DIALECT!r}.')
        if user and conf.GATEWAY_USER_HEADER is None:
            raise CommandError("Set RATELIMIT_GATEWAY_USER_HEADER: without it, nobody believes who the user is.")
        try:
            text = configuration(
                proxy, listen=options["listen"], upstream=options["upstream"],
                gateway=options["gateway"] or "127.0.0.1:8000", path=path, fail=options["fail"], user=user,
                beside=options["beside"],
            )  # fmt: skip
        except ValueError as error:
            raise CommandError(f"{error}.") from None
        self.stdout.write(text)

    def _print_grpc(self, **options: Any) -> None:
        if options["user"]:
            raise CommandError("Over gRPC, a descriptor says who the user is.")
        try:
            text = grpc_configuration(
                listen=options["listen"], upstream=options["upstream"], gateway=options["gateway"] or "127.0.0.1:8081",
                fail=options["fail"],
            )  # fmt: skip
        except ValueError as error:
            raise CommandError(f"{error}.") from None
        self.stdout.write(text)
