"""Six limited views, a circuit breaker, and the page that shows them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from django.contrib.auth.views import LoginView
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_POST

from django_ratelimit_lua import Decision, LimitState, Ratelimited, RateLimiter, ratelimit
from django_ratelimit_lua.contrib.breakers import CircuitBreaker
from django_ratelimit_lua.operations import client_address, explain

logger = logging.getLogger(__name__)

# 1. A login form. The first limit stops a client that guesses one user's password, the second one
# a client that tries many names, the third one many addresses that guess one name. All three are
# one decision. A client that is refused five times in a quarter of an hour is banned for half an
# hour.

guesses = [
    ratelimit(
        key=("ip", "post:username"),
        rate="5/15m",
        method="POST",
        ban_after=5,
        ban_window="15m",
        ban_for="30m",
    ),
    ratelimit(key="ip", rate="30/15m", method="POST"),
    ratelimit(key="post:username", rate="50/h", method="POST"),
]


@method_decorator(guesses, name="dispatch")
class Login(LoginView):
    template_name = "login.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, limits=limits_at(self.request, "POST", "/login/"))


# 2. A search with two limits, ten a second and five hundred an hour, in one decision.


@require_GET
@ratelimit(group="search", key="ip", rate=["10/s", "500/h"])
def search(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"found": [], "limits": numbers(request.ratelimit)})


# 3. An export that costs a token for every hundred rows. The bucket holds 50 tokens and is refilled
# by 60 a minute.


def cost_of_export(group: str, request: HttpRequest) -> int:
    rows = request.GET.get("rows", "")
    return max(1, int(rows) // 100) if rows.isascii() and rows.isdigit() and len(rows) < 9 else 1


@require_GET
@ratelimit(key="ip", rate="60/m", algorithm="token_bucket", burst=50, cost=cost_of_export)
def export(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"cost": request.ratelimit.granted, "limits": numbers(request.ratelimit)})


# 4. Webhooks to a receiver that accepts four a second. Each gets a turn and waits for it in the
# background. If twelve wait already, the request is refused. (A caller that may wait itself:
# `await webhooks.aacquire(...)`.)

webhooks = RateLimiter("webhooks", "4/s", algorithm="leaky_bucket", queue=12)
outbox: set[asyncio.Task[None]] = set()


async def deliver(wait: float) -> None:
    await asyncio.sleep(wait)
    logger.info("A webhook leaves.")


@require_POST
async def webhook(request: HttpRequest) -> HttpResponse:
    turn = await webhooks.ahit("receiver.example")
    if not turn:
        raise Ratelimited(turn)
    task = asyncio.create_task(deliver(turn.wait))
    outbox.add(task)
    task.add_done_callback(outbox.discard)
    return JsonResponse({"wait": turn.wait, "limits": numbers(turn)}, status=202)


# 5. An asynchronous view. The decision is awaited without a thread.


@ratelimit(key="ip", rate="20/30s", algorithm="sliding_log")
async def clock(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"time": time.time(), "limits": numbers(request.ratelimit)})


# 6. A page of a tenant. The rule "tenants" in the admin counts by the key "tenant" of
# `RATELIMIT_KEYS`: 10 a minute for each tenant, and 30 on the plan "pro".


@require_GET
def orders(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"tenant": request.GET.get("tenant"), "limits": numbers(request.ratelimit)})


# The address that counts. Open this page from outside to check the settings of your proxies.


@require_GET
def address(request: HttpRequest) -> HttpResponse:
    found = client_address(request)
    seen = {name: request.headers.get(name) for name in ("X-Forwarded-For", "Forwarded")}
    context = {"found": found, "remote_addr": request.META.get("REMOTE_ADDR"), "seen": seen}
    return render(request, "address.html", context)


# The rest is for the pages of the demo.


def numbers(decision: Decision) -> list[dict[str, Any]]:
    """The decision's limits for the page."""
    return [
        {
            "limit": state.limit,
            "used": state.used,
            "remaining": state.remaining,
            "reset_after": state.reset_after,
            "allowed": state.allowed,
            "name": state.name.rpartition(":")[2],
        }
        for state in decision.limits
    ]


def blocked(request: HttpRequest, exception: Ratelimited) -> HttpResponse:
    """Return the response to a refused request (`RATELIMIT_VIEW`): a page, or numbers as JSON."""
    if request.get_preferred_type(["text/html", "application/json"]) == "application/json":
        body = {
            "limits": numbers(exception.decision),
            "retry_after": exception.decision.retry_after,
            "reference": exception.reference,
        }
        if exception.status_code == 403:  # A block that does not say when it ends.
            del body["retry_after"]
        return JsonResponse(body, status=exception.status_code)
    return render(request, "blocked.html", {"refused": exception}, status=exception.status_code)


TARGETS = [
    ("search", "Search", "GET", "/search/", "each address"),
    (
        "login",
        "Login",
        "POST",
        "/login/",
        "each address with a user name, each address, and each user name",
    ),
    ("export", "Export", "GET", "/export/", "each address; a unit for every hundred rows"),
    ("webhook", "Webhook", "POST", "/webhook/", "the receiver; those over it wait their turn"),
    ("clock", "Async view", "GET", "/clock/", "each address, exactly"),
    ("api", "REST framework", "GET", "/api/", "throttle classes"),
    (
        "orders/?tenant=acme",
        "Tenant",
        "GET",
        "/orders/?tenant=acme",
        "each tenant; acme is on the plan “pro”",
    ),
    (
        "wp-login.php",
        "Nowhere",
        "GET",
        "/wp-login.php",
        "each address, by a rule: scanners look for it",
    ),
]


@require_GET
@ensure_csrf_cookie
def home(request: HttpRequest) -> HttpResponse:
    targets = [
        {"value": value, "name": name, "limits": limits_at(request, method, path), "who": who}
        for value, name, method, path, who in TARGETS
    ]
    return render(request, "home.html", {"targets": targets})


def limits_at(request: HttpRequest, method: str, path: str) -> str:
    """Return the limits of such a request at the moment, in words."""
    asked = RequestFactory().generic(method, path, REMOTE_ADDR=request.META.get("REMOTE_ADDR", ""))
    asked.user = request.user
    met = [
        limit.state
        for limit in explain(asked).limits
        if limit.state is not None and limit.name != "everything"
    ]
    if path == "/webhook/":  # Only the view itself uses the limiter.
        met += webhooks.peek("receiver.example").limits
    return " and ".join(map(words_of, met)) or "no limit"


def words_of(state: LimitState) -> str:
    """A limit in words: "10 per second", "5 per 15 minutes", "2 at once"."""
    if state.is_slots:
        return f"{state.limit} at once"
    unit, name = next((unit, name) for unit, name in UNITS if state.period % unit == 0)
    times = round(state.period / unit)
    shadow = " (shadow mode)" if state.mode == "shadow" else ""
    return f"{state.limit} per {name if times == 1 else f'{times} {name}s'}{shadow}"


UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


@require_POST
def reset(request: HttpRequest) -> HttpResponse:
    """Delete all counts of the demo. A real project resets one identity:
    `limiter.reset(identity)`.
    """
    client = caches["default"].client.get_client()
    for key in client.scan_iter(match="example:*"):
        if b"{stats" not in key:  # The statistics stay.
            client.delete(key)
    return HttpResponse(status=204)


# A payment service that may fail: the page has a switch. While the breaker is open, the service
# is not called, and the middleware responds with 503. Breakers in the admin shows its state.

payments = CircuitBreaker("payments", failures=3, slow="1s", open_for="6s")
HEALTHS = {"well": "answers", "sick": "fails", "slow": "takes a second and a half"}


def health_of_payments() -> str:
    return str(caches["default"].get("payments", "well"))


@payments
def call_payment_service() -> None:
    health = health_of_payments()
    if health == "slow":
        time.sleep(1.5)
    if health == "sick":
        raise ConnectionError("the payment service failed")


@require_POST
def pay(request: HttpRequest) -> HttpResponse:
    try:
        call_payment_service()
    except ConnectionError as error:
        return JsonResponse({"error": str(error)}, status=502)
    return JsonResponse({"paid": True})


@ensure_csrf_cookie
def payment_desk(request: HttpRequest) -> HttpResponse:
    if request.method == "POST" and request.POST.get("health") in HEALTHS:
        caches["default"].set("payments", request.POST["health"], None)
        return redirect("payments")
    context = {"healths": HEALTHS.items(), "health": health_of_payments(), "state": payments.state}
    return render(request, "payments.html", context)


# A report that takes ten seconds to send. A rule of the admin lets an address have two of them at
# the same time: each holds its slot until the last line is sent, or the client disconnects.

LINES, SECONDS_PER_LINE = 40, 0.25


async def lines_of_report() -> AsyncIterator[str]:
    for number in range(LINES):
        yield f"{number + 1}. of {LINES} lines\n"
        await asyncio.sleep(SECONDS_PER_LINE)


@require_GET
async def report(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(lines_of_report(), content_type="text/plain; charset=utf-8")
