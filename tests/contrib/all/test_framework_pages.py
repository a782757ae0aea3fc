"""The examples on the pages of other frameworks limit real calls of each framework."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.test import Client, override_settings
from django.urls import path
from django.utils import timezone
from sybil.document import Document
from sybil.parsers.rest import PythonCodeBlockParser

from docs.conftest import django_tasks  # noqa: F401

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def page(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    django_tasks: None,  # noqa: F811
) -> ModuleType:
    """A module with the names that the Python blocks of a page define."""
    file = DOCS / "how-to" / request.param
    module = ModuleType(f"page_{file.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    document = Document.parse(str(file), PythonCodeBlockParser())
    document.namespace = vars(module)
    for example in document.examples():
        example.evaluate()
    return module


def of_page(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", [name], indirect=True)


@contextmanager
def serve(*patterns: Any) -> Iterator[None]:
    urls = ModuleType("urls")
    vars(urls)["urlpatterns"] = list(patterns)
    with override_settings(ROOT_URLCONF=urls):
        yield


def get_statuses(url: str, count: int) -> list[int]:
    return [Client().get(url).status_code for _ in range(count)]


@of_page("ninja.rst")
def test_operations_of_django_ninja_are_limited_with_a_429_in_the_schema(page: ModuleType) -> None:
    """Operations by address and by API key are refused when their units are used."""
    with serve(path("api/", page.api.urls)):
        assert get_statuses("/api/search", 6) == [200] * 5 + [429]
        refusal = Client(headers={"Accept": "application/json"}).get("/api/search").json()
        assert (refusal["status"], refusal["detail"]) == (429, "Try again in 60 seconds.")
        assert get_statuses("/api/report", 2) == [401, 401]
        assert Client(headers={"X-API-Key": "secret"}).get("/api/report").json() == {"left": 99}
    schema = page.api.get_openapi_schema(path_prefix="/api/")
    assert 429 in schema["paths"]["/api/search"]["get"]["responses"]


@of_page("ninja.rst")
def test_controllers_of_modern_rest_are_limited_with_a_429_in_the_schema(page: ModuleType) -> None:
    """Methods for reading and for uploads have limits of their own."""
    openapi = pytest.importorskip("dmr.openapi")
    routing = pytest.importorskip("dmr.routing")
    reports, uploads = page.Reports.as_view(), page.Uploads.as_view()
    router = routing.Router("api/", [path("reports/", reports), path("uploads/", uploads)])
    with serve(router.to_urlpatterns(namespace="api")):
        assert get_statuses("/api/reports/", 6) == [200] * 5 + [429]
        upload = {"path": "/api/uploads/", "content_type": "application/json"}
        posted = [Client().post(**upload) for _ in range(11)]
        assert [response.status_code for response in posted] == [201] * 10 + [429]
        schema = openapi.build_schema(router)
    assert 429 in map(int, schema.paths["/api/reports/"].get.responses)


@of_page("task-queues.rst")
def test_tasks_of_django_get_turns_that_are_a_quarter_of_a_second_apart(page: ModuleType) -> None:
    """A queue of the limit delays each task until its turn."""
    from django.tasks import default_task_backend  # type: ignore[import-not-found, unused-ignore]

    for _ in range(3):
        assert page.queue_webhook("https://receiver.example/")
    first, _, third = [result.task.run_after for result in default_task_backend.results]
    assert first <= timezone.now() + timedelta(seconds=1)
    assert timedelta(seconds=0.3) < third - first < timedelta(seconds=0.6)


@of_page("task-queues.rst")
def test_a_refused_task_of_huey_is_scheduled_again(page: ModuleType) -> None:
    """The task has its arguments, and earlier tasks have run."""
    for recipient in ("ada", "grace", "alan"):
        page.send_mail(recipient)
    for _ in range(3):
        page.huey.execute(page.huey.dequeue())
    assert page.sent == ["ada", "grace"]
    (scheduled,) = page.huey.scheduled()
    assert scheduled.args == ("alan",)


@of_page("task-queues.rst")
def test_a_refused_job_of_procrastinate_stays_to_do(page: ModuleType) -> None:
    """Other jobs of the customer succeed."""

    async def work() -> None:
        async with page.app.open_async():
            for _ in range(3):
                await page.load.defer_async(customer="ada")
            await page.app.run_worker_async(wait=False, install_signal_handlers=False)

    asyncio.run(work())
    jobs = page.app.connector.jobs.values()
    assert sorted(job["status"] for job in jobs) == ["succeeded", "succeeded", "todo"]


async def connect(consumer: Any, user: int) -> tuple[ApplicationCommunicator, bool]:
    """Return a WebSocket of this user, and whether it was accepted."""
    scope = {"type": "websocket", "path": "/", "subprotocols": []}
    scope["user"] = SimpleNamespace(pk=user)
    client = ApplicationCommunicator(consumer.as_asgi(), scope)
    await client.send_input({"type": "websocket.connect"})
    answer = await client.receive_output()
    return client, answer["type"] == "websocket.accept"


async def disconnect(client: ApplicationCommunicator) -> None:
    await client.send_input({"type": "websocket.disconnect", "code": 1000})
    await client.wait()


@of_page("channels.rst")
def test_messages_and_connections_of_channels_are_limited(page: ModuleType) -> None:
    """A refused message gets the seconds to wait, and a refused connection is closed."""

    async def talk() -> list[Any]:
        client, accepted = await connect(page.Chat, 1)
        assert accepted
        answers = []
        for number in range(6):
            await client.send_input({"type": "websocket.receive", "text": json.dumps(number)})
            answers.append(json.loads((await client.receive_output())["text"]))
        await disconnect(client)
        return answers

    async def connect_often() -> list[bool]:
        opened = [await connect(page.Chat, 2) for _ in range(11)]
        for client, _ in opened:
            await disconnect(client)
        return [accepted for _, accepted in opened]

    *echoes, refusal = asyncio.run(talk())
    assert echoes == [{"echo": number} for number in range(5)]
    assert 0 < refusal["retry_after"] <= 2
    assert asyncio.run(connect_often()) == [True] * 10 + [False]


@of_page("channels.rst")
def test_a_closed_connection_of_channels_gives_its_slot_back(page: ModuleType) -> None:
    """A fourth connection of a user is accepted after one has closed."""

    async def open_four() -> None:
        opened = [await connect(page.Room, 3) for _ in range(4)]
        assert [accepted for _, accepted in opened] == [True] * 3 + [False]
        await disconnect(opened[0][0])
        last, accepted = await connect(page.Room, 3)
        assert accepted
        for client in (last, opened[1][0], opened[2][0]):
            await disconnect(client)

    asyncio.run(open_four())
