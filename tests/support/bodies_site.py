"""Views that take a request's body in every way there is; each answers with what it got. Also as a
site of its own.
"""

from __future__ import annotations

import os

from django.conf import settings

if not settings.configured:
    from tests.support.redis_server import url

    settings.configure(
        SECRET_KEY="tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.support.bodies_site",
        USE_TZ=True,
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django_ratelimit_lua",
        ],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url()}},
        MIDDLEWARE=["django_ratelimit_lua.middleware.RateLimitMiddleware"],
        RATELIMIT_RULES=[{"name": "names", "path": "/", "key": "data:name", "rate": "2/h"}],
        RATELIMIT_TIMEOUT=10,
        RATELIMIT_ON_STORE_ERROR="closed",
        RATELIMIT_CACHE_PREFIX=os.environ["RATELIMIT_TEST_PREFIX"],
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    )

    import django

    django.setup()

import hashlib
import io
from collections.abc import Callable
from typing import Any

from django.core.asgi import get_asgi_application
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.views import APIView


def _sum(data: bytes) -> list[Any]:
    return [len(data), hashlib.blake2b(data, digest_size=8).hexdigest()]


class Chunks(FileUploadHandler):
    """An upload handler of the view's own."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.taken = io.BytesIO()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.taken.write(raw_data)

    def file_complete(self, file_size: int) -> Any:
        return SimpleUploadedFile(f"own-{self.file_name}", self.taken.getvalue())


def _form(request: HttpRequest) -> list[Any]:
    files = [
        [name, [[file.name, _sum(file.read())] for file in found]]
        for name, found in request.FILES.lists()
    ]
    return [dict(request.POST.lists()), files]


def handlers(request: HttpRequest) -> list[Any]:
    request.upload_handlers = [Chunks(request)]
    return _form(request)


def encoding(request: HttpRequest) -> list[Any]:
    request.encoding = "utf-8"
    return _form(request)


def body(request: HttpRequest) -> list[Any]:
    return [_sum(request.body), _sum(request.body)]


def body_and_form(request: HttpRequest) -> list[Any]:
    return [_sum(request.body), *_form(request)]


def form_and_body(request: HttpRequest) -> list[Any]:
    return [*_form(request), _sum(request.body)]


def read(request: HttpRequest) -> list[Any]:
    return [
        _sum(request.read(7)),
        _sum(request.readline()),
        _sum(request.read()),
        _sum(request.read()),
    ]


def iterate(request: HttpRequest) -> list[Any]:
    return [_sum(line) for line in request]


def partly(request: HttpRequest) -> list[Any]:
    return [_sum(request.read(3)), *_form(request)]


def partly_and_body(request: HttpRequest) -> list[Any]:
    return [_sum(request.read(3)), _sum(request.body)]


def servers_own(request: HttpRequest) -> list[Any]:
    stream = request.META.get("wsgi.input")
    return (
        [] if stream is None else [_sum(stream.read(int(request.META.get("CONTENT_LENGTH") or 0)))]
    )


def nothing(request: HttpRequest) -> list[Any]:
    return []


def drf(request: HttpRequest) -> list[Any]:
    asked = Request(request, parsers=[JSONParser(), FormParser(), MultiPartParser()])
    data = asked.data
    fields = (
        {name: data.getlist(name) for name in data if name not in asked.FILES}
        if hasattr(data, "lists")
        else data
    )
    return [fields, [[name, _sum(file.read())] for name, file in asked.FILES.items()]]


TAKES: list[Callable[[HttpRequest], list[Any]]] = [
    handlers,
    encoding,
    body,
    body_and_form,
    form_and_body,
    read,
    iterate,
    partly,
    partly_and_body,
    servers_own,
    nothing,
    drf,
]


def _view(take: Callable[[HttpRequest], list[Any]]) -> Any:
    def view(request: HttpRequest) -> JsonResponse:
        try:
            return JsonResponse({"took": take(request)})
        except Exception as error:  # What a view meets must not differ either.
            return JsonResponse({"error": type(error).__name__})

    async def aview(request: HttpRequest) -> JsonResponse:
        return view(request)

    return view, aview


class Echo(APIView):
    parser_classes = (JSONParser, FormParser, MultiPartParser)

    def post(self, request: Request) -> JsonResponse:
        return JsonResponse({"took": drf(request._request)})

    put = patch = post


urlpatterns = [path("echo", Echo.as_view())]
for one in TAKES:
    _sync, _async = _view(one)
    urlpatterns += [path(f"sync/{one.__name__}", _sync), path(f"async/{one.__name__}", _async)]

if "RATELIMIT_TEST_PREFIX" in os.environ:
    application = get_wsgi_application()
    asgi = get_asgi_application()
