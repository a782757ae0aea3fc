"""What a blocked client is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client, RequestFactory

from django_ratelimit_lua import ratelimit


def blocked(client: Client, **headers: str) -> Any:
    for _ in range(2):
        client.get("/plain")
    response = client.get("/plain", headers=headers)
    assert response.status_code == 429
    assert response["Cache-Control"] == "no-store"
    assert 60 <= int(response["Retry-After"]) <= 66
    return response


def test_a_plain_page_says_when_to_come_back(client: Client) -> None:
    """Without a template, in plain text."""
    response = blocked(client)
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response.content.decode() == f"Too many requests. Try again in {response['Retry-After']} seconds.\n"


@pytest.mark.parametrize(
    "accept", ["application/json", "application/problem+json", "application/json, text/html;q=0.5"]
)
def test_who_asks_for_json_gets_a_problem_document(accept: str, client: Client) -> None:
    """RFC 9457."""
    response = blocked(client, accept=accept)
    assert response["Content-Type"] == "application/problem+json"
    body = json.loads(response.content)
    assert (body["status"], body["title"]) == (429, "Too Many Requests")
    assert str(body["retry_after"]) == response["Retry-After"]


@pytest.mark.parametrize("accept", ["*/*", "text/html", "text/html, application/json;q=0.9", "image/png"])
def test_who_does_not_gets_a_page(accept: str, client: Client) -> None:
    """Browsers and curl."""
    assert blocked(client, accept=accept)["Content-Type"].startswith("text/plain")


def templates(text: str) -> list[dict[str, Any]]:
    loaders = [("django.template.loaders.locmem.Loader", {"429.html": text})]
    return [{"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}]


def test_the_projects_template_is_used(client: Client, settings: Any) -> None:
    """`429.html` gets the decision and the seconds."""
    settings.TEMPLATES = templates("<p>{{ retry_after }} {{ decision.remaining }} {{ decision.denied_by.0 }}</p>")
    response = blocked(client)
    name = "tests.acceptance.site.plain:*:ip:2/m"
    assert response.content.decode() == f"<p>{response['Retry-After']} 0 {name}</p>"
    assert response["Content-Type"].startswith("text/html")


def test_a_template_missing_inside_the_projects_is_not_hidden(client: Client, settings: Any) -> None:
    """Only the absence of `429.html` itself means that there is none."""
    from django.template import TemplateDoesNotExist

    settings.TEMPLATES = templates("{% include 'missing.html' %}")
    with pytest.raises(TemplateDoesNotExist, match=r"missing\.html"):
        blocked(client)


def test_the_view_setting_replaces_it(client: Client, settings: Any) -> None:
    """`RATELIMIT_VIEW` gets the request and the exception; `Retry-After` is added."""
    settings.RATELIMIT_VIEW = "tests.acceptance.site.custom"
    responses = [client.get("/plain") for _ in range(3)]
    assert responses[-1].status_code == 418
    assert responses[-1].content.startswith(b"custom ('tests.acceptance.site.plain")
    assert responses[-1]["Retry-After"]


@pytest.mark.parametrize(
    ("rate", "cost", "detail"),
    [
        ("5/m", 6, "This request is larger than the limit allows."),
        ("0/m", 1, "This request is not allowed."),
        (["5/m", "0/h"], 1, "This request is not allowed."),
        (["5/m", "100/h"], 6, "This request is larger than the limit allows."),
    ],
)
def test_who_can_never_come_back_is_told_why(rate: Any, cost: int, detail: str, rf: RequestFactory) -> None:
    """What is too large is too large; where nothing is let in, size is not the reason."""
    view = ratelimit(key="ip", rate=rate, cost=cost)(lambda request: None)
    response = view(rf.get("/", headers={"accept": "application/json"}))
    assert json.loads(response.content)["detail"] == detail
