"""Fixtures of several files: the demo and its browser, an operator, received signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DataError, connection
from django.test import Client

from django_ratelimit_lua.rules.rule import is_storable
from django_ratelimit_lua.signals import banned
from tests.support.demo import CHROMIUM, DRIVER, headless, start
from tests.support.users import OPERATOR


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use a browser."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


@pytest.fixture
def operator() -> Client:
    """A superuser, at an address of the operators."""
    client = Client(REMOTE_ADDR=OPERATOR)
    client.force_login(User.objects.create_superuser("grace"))
    return client


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    """Return the arguments that receivers of `banned` get."""
    received: list[dict[str, Any]] = []

    def receive(sender: Any, **arguments: Any) -> None:
        received.append(arguments)

    banned.connect(receive)
    yield received
    banned.disconnect(receive)


@pytest.fixture
def strict() -> Iterator[None]:
    """Let any database refuse the texts that PostgreSQL refuses."""

    def refuse(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        if odd := [text for text in _texts(parameters) if not is_storable(text)]:
            raise DataError(f"PostgreSQL refuses {odd} in {sql}")
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(refuse):
        yield


def _texts(parameters: Any) -> Iterator[str]:
    if isinstance(parameters, str):
        yield parameters
    elif isinstance(parameters, (list, tuple)):
        for each in parameters:
            yield from _texts(each)


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """Return the address of a demo for this module."""
    process, address, _ = start()
    yield address
    process.terminate()
    process.communicate(timeout=20)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start one browser for a module, because the start takes longer than most tests."""
    if not CHROMIUM or not DRIVER:
        pytest.skip(
            "NO BROWSER TEST: chromium and chromedriver are not installed (Debian: chromium, "
            "chromium-driver)"
        )
    driver = headless(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Any:
    """Return the browser without cookies, storage and log entries of earlier tests."""
    chromium.get("about:blank")
    chromium.set_window_size(1280, 900)
    chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})
    chromium.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})
    chromium.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    chromium.get_log("browser")
    return chromium


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run a demo for an operator: see `tests.support.operators.demo_site`."""
    from tests.support.operators import demo_site

    with demo_site(request, tmp_path_factory) as running:
        yield running


@pytest.fixture
def operator_for(browser: Any, site: Any) -> Callable[[str], Any]:
    """Return a function that logs an operator in for a task."""
    from tests.support.operators import Operator

    return lambda task: Operator(browser, site, task)
