"""The responses to refused clients."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import pickle
import re
from pathlib import Path
from typing import Any

import axe_core_python
import pytest
from django.conf import settings as site_settings
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.utils import timezone, translation
from django.utils.functional import SimpleLazyObject

from django_ratelimit_lua import Ratelimited, ratelimit
from django_ratelimit_lua.models import RateLimitOverride, RateLimitRule
from tests.support.demo import screenshot
from tests.urls import LIMITS

AXE = Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
GERMAN = {"accept": BROWSER, "accept-language": "de-CH,de;q=0.9,en;q=0.5"}
LOCALE = "django.middleware.locale.LocaleMiddleware"
REFERENCE = "RateLimit-Reference"
ENGINE = "django.template.backends.django.DjangoTemplates"
DAILY = {"name": "all", "path": "/", "key": "ip", "rate": "1/d", "algorithm": "fixed_window"}


def blocked(client: Client, **headers: str) -> Any:
    for _ in range(2):
        client.get("/plain")
    response = client.get("/plain", headers=headers)
    assert response.status_code == 429
    assert response["Cache-Control"] == "no-store"
    assert 50 <= int(response["Retry-After"]) <= 60
    return response


def test_a_program_gets_the_retry_time_in_plain_text(client: Client) -> None:
    """The text has the retry time and the reference."""
    response = blocked(client)
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    text = (
        f"Too many requests. Try again in {response['Retry-After']} seconds.\nReference: "
        f"{response[REFERENCE]}\n"
    )
    assert response.content.decode() == text


def test_a_client_that_accepts_json_gets_a_problem_document(client: Client) -> None:
    """It is a document of RFC 9457 with a type of the IETF draft and the names of policies."""
    response = blocked(client, accept="application/json")
    assert response["Content-Type"] == "application/problem+json"
    assert json.loads(response.content) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": f"Try again in {response['Retry-After']} seconds.",
        "violated-policies": ["plain"],
        "retry_after": int(response["Retry-After"]),
        "reference": response[REFERENCE],
    }


def test_the_violated_policies_are_named_as_in_the_headers(
    rf: RequestFactory, settings: Any
) -> None:
    """Only the policies that refuse are named."""
    settings.RATELIMIT_HEADERS = "ietf"
    view = ratelimit("search", "ip", ["9/s", "1/h", "5/d"])(lambda request: HttpResponse())
    headers = {"accept": "application/json"}
    refused = [view(rf.get("/", headers=headers)) for _ in range(2)][-1]
    assert json.loads(refused.content)["violated-policies"] == ["search-2"]
    assert refused["RateLimit-Policy"].startswith('"search";q=9;w=1, "search-2";q=1;w=3600')


def test_a_browser_gets_an_html_page(client: Client) -> None:
    """Without a template of the project, the page has the reason, the retry time and the
    reference. It has no script and loads nothing, so it works under any Content-Security-Policy.
    """
    response = blocked(client, accept=BROWSER)
    page = response.content.decode()
    assert response["Content-Type"] == "text/html; charset=utf-8"
    assert '<meta name="color-scheme" content="light dark">' in page
    assert not re.search(
        r"<script|<link|<img|<iframe|@import|url\(|https?:|\bsrc=|\bon\w+=|\bstyle=", page
    )
    assert "<h1>Too many requests</h1>" in page
    assert f"<p>Try again in {response['Retry-After']} seconds.</p>" in page
    assert f"<code>{response[REFERENCE]}</code>" in page


@pytest.mark.parametrize(
    "engines",
    [[{"BACKEND": ENGINE}], [{"BACKEND": ENGINE, "OPTIONS": {"string_if_invalid": "BROKEN"}}], []],
    ids=["without app directories", "strict", "no templates at all"],
)
def test_the_429_page_works_without_the_projects_templates_and_app(
    engines: Any, client: Client, settings: Any
) -> None:
    """The page needs neither the template engine nor the installed app."""
    settings.TEMPLATES = engines
    page = blocked(client, accept=BROWSER).content.decode()
    assert "<h1>Too many requests</h1>" in page
    assert "BROKEN" not in page


@pytest.mark.parametrize("attribute", ["csp_nonce", "_csp_nonce"])
def test_the_style_has_the_nonce_of_the_request(attribute: str, rf: RequestFactory) -> None:
    """The nonce is that of django-csp or of Django's own middleware."""
    view = ratelimit(key="ip", rate="0/m")(lambda request: None)
    request = rf.get("/", headers={"accept": BROWSER})
    setattr(request, attribute, SimpleLazyObject(lambda: "r4nd<m"))
    assert '<style nonce="r4nd&lt;m">' in view(request).content.decode()


def test_the_documentation_has_the_hash_of_the_style(client: Client) -> None:
    """The documented hash can be used in a Content-Security-Policy."""
    style = re.search(
        r"<style>(.*)</style>", blocked(client, accept=BROWSER).content.decode()
    ).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = Path(__file__).parents[3] / "docs" / "how-to" / "refusal-pages.rst"
    assert f"'sha256-{digest}'" in page.read_text()


def test_texts_of_a_rule_are_escaped_in_responses(client: Client, settings: Any) -> None:
    """The lines of the text are kept."""
    message = "Too many searches.\nAsk <sales@example.org>."
    settings.MIDDLEWARE = [LIMITS]
    settings.RATELIMIT_RULES = [
        {"name": "all", "path": "/", "key": "ip", "rate": "0/m", "message": message}
    ]
    page = client.get("/plain", headers={"accept": BROWSER}).content.decode()
    assert "<p>Too many searches.<br>Ask &lt;sales@example.org&gt;.</p>" in page


@pytest.mark.parametrize(
    "middleware", [[LOCALE, LIMITS], [LIMITS, LOCALE]], ids=["in front", "behind"]
)
def test_a_client_gets_the_message_in_its_language(
    middleware: list[str], client: Client, settings: Any
) -> None:
    """`LocaleMiddleware` may stand before or after, and clients may differ in language."""
    settings.MIDDLEWARE = middleware
    settings.RATELIMIT_RULES = [DAILY]
    client.get("/plain")
    page = client.get("/plain", headers=GERMAN).content.decode()
    assert '<html lang="de">' in page
    assert "<h1>Zu viele Anfragen</h1>" in page
    assert "Versuchen Sie es in etwa 24 Stunden noch einmal." in page
    assert "nennen Sie diese Referenz:" in page
    english = client.get("/plain", headers={"accept": BROWSER, "accept-language": "en"})
    assert b"Try again in about 24 hours." in english.content
    detail = client.get("/plain", headers={**GERMAN, "accept": "application/json"}).json()["detail"]
    assert detail == "Versuchen Sie es in etwa 24 Stunden noch einmal."
    plain = client.get("/plain", headers={**GERMAN, "accept": "*/*"}).content.decode()
    assert plain.startswith(
        "Zu viele Anfragen. Versuchen Sie es in etwa 24 Stunden noch einmal.\nReferenz: "
    )


def test_a_site_with_one_language_answers_in_that_language(client: Client, settings: Any) -> None:
    """Without `LocaleMiddleware`, the language of the browser is ignored."""
    settings.LANGUAGE_CODE = "de"
    translation.activate("de")  # As Django does at its start.
    page = blocked(client, accept=BROWSER, **{"accept-language": "en"}).content.decode()
    assert "<h1>Zu viele Anfragen</h1>" in page


def test_the_projects_429_template_is_used(client: Client, settings: Any) -> None:
    """`429.html` gets the documented variables."""
    names = "retry_after decision.remaining decision.denied_by.0 reason message when reference"
    text = "|".join(f"{{{{ {name} }}}}" for name in names.split())
    loaders = [("django.template.loaders.locmem.Loader", {"429.html": text})]
    settings.TEMPLATES = [{"BACKEND": ENGINE, "OPTIONS": {"loaders": loaders}}]
    response = blocked(client)
    seconds, name = response["Retry-After"], "tests.urls.plain:*:ip:2/m"
    text = f"{seconds}|0|{name}|wait||Try again in {seconds} seconds.|{response[REFERENCE]}"
    assert response.content.decode() == text
    assert response["Content-Type"].startswith("text/html")


def refused_view(request: Any, refused: Ratelimited) -> HttpResponse:
    return HttpResponse(f"{refused.message}|{refused.when}|{refused.reference}", status=418)


def test_ratelimit_view_receives_the_refusal(client: Client, settings: Any) -> None:
    """The exception has message, retry time and reference. The view may return any status."""
    settings.MIDDLEWARE = [LIMITS, LOCALE]
    settings.RATELIMIT_RULES = [{**DAILY, "message": "Ask sales."}]
    settings.RATELIMIT_VIEW = f"{__name__}.refused_view"
    client.get("/plain")
    response = client.get("/plain", headers=GERMAN)
    assert (response.status_code, bool(response["Retry-After"])) == (418, True)
    text = f"Ask sales.|Versuchen Sie es in etwa 24 Stunden noch einmal.|{response[REFERENCE]}"
    assert response.content.decode() == text
    assert response[REFERENCE]


def test_an_exception_class_of_the_project_has_the_message_of_the_rule(
    rf: RequestFactory, settings: Any
) -> None:
    """A `Ratelimited` keeps it when it is pickled. Without a message it has a text of its own."""
    settings.RATELIMIT_EXCEPTION_CLASS = Ratelimited
    settings.RATELIMIT_RULES = [
        {"name": "search", "path": "/", "key": "ip", "rate": "0/m", "message": "Ask sales."}
    ]
    view = ratelimit("search", "ip", "5/m")(lambda request: None)
    with pytest.raises(Ratelimited) as raised:
        view(rf.get("/"))
    sent = pickle.loads(pickle.dumps(raised.value))
    for error in (raised.value, sent):
        assert (error.message, error.when) == ("Ask sales.", "This is not available.")
        assert error.reference
    settings.RATELIMIT_RULES = [{"name": "search", "key": "ip", "rate": "0/m"}]
    with pytest.raises(Ratelimited) as raised:
        view(rf.get("/"))
    assert raised.value.message == str(raised.value) == "search: do not retry"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_rule", [True, False])
def test_a_permanent_block_is_described_as_permanent(
    has_rule: bool, client: Client, settings: Any
) -> None:
    """The response names no quota. A temporary block has a retry time."""
    settings.MIDDLEWARE = [LIMITS]
    settings.RATELIMIT_HEADERS = "ietf"
    if has_rule:
        RateLimitRule.objects.create(
            name="all", key="ip", rate="5/60m", path="/", message="Ask sales."
        )
    block = RateLimitOverride.objects.create(network="127.0.0.0/8", effect="block")
    response = client.get("/plain", headers={"accept": "application/json"})
    body = response.json()
    said = "You are blocked."
    assert body == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": f"Ask sales. {said}" if has_rule else said,
        "reference": response[REFERENCE],
    }
    assert response["RateLimit-Policy"] == ('"all";q=0' if has_rule else '"block";q=0')
    page = client.get("/plain", headers={"accept": BROWSER}).content.decode()
    assert "<h1>Not allowed</h1>" in page
    assert f"<p>{said}</p>" in page
    block.ends = timezone.now() + datetime.timedelta(hours=3)
    block.save()
    response = client.get("/plain", headers={"accept": "application/json"})
    assert response.json()["detail"].endswith("Try again in about 3 hours.")
    assert 10_000 < int(response["Retry-After"]) <= 10_800


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_real_browser_renders_the_429_page(
    theme: str, browser: Any, live_server: Any, settings: Any
) -> None:
    """The page is accessible on large and small screens, under the strictest policy as well."""
    settings.MIDDLEWARE = [f"{__name__}.with_policy"]
    theme_feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme_feature]})
    for policy, font in (("", "system-ui, sans-serif"), ("default-src 'none'", None)):
        settings.TEST_POLICY = policy
        for _ in range(3):
            browser.get(f"{live_server.url}/plain")
        assert browser.find_element("tag name", "h1").text == "Too many requests"
        body = browser.find_element("tag name", "body")
        assert body.text.splitlines()[1].startswith("Try again in ")
        assert (body.value_of_css_property("font-family") == font) == (font is not None)
        assert body.value_of_css_property("color") == (
            "rgba(255, 255, 255, 1)" if theme == "dark" else "rgba(0, 0, 0, 1)"
        )
        for width in (1280, 390):
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            screenshot(browser, f"429-{'strict' if policy else 'styled'}-{width}-{theme}")
        browser.execute_script(AXE)
        found = browser.execute_async_script("axe.run().then(arguments[0])")
        assert [problem["id"] for problem in found["violations"]] == []


def with_policy(get_response: Any) -> Any:
    """A middleware of the site that sets a Content-Security-Policy."""

    def answer(request: Any) -> Any:
        response = get_response(request)
        if site_settings.TEST_POLICY:
            response["Content-Security-Policy"] = site_settings.TEST_POLICY
        return response

    return answer
