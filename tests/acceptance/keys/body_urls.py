"""Views that read the body of a request in every way, and respond with what they have read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import FileUploadHandler
from django.http import HttpRequest, JsonResponse
from django.urls import path
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.views import APIView


def checksum(data: bytes) -> list[Any]:
    return [len(data), hashlib.blake2b(data, digest_size=8).hexdigest()]


class Chunks(FileUploadHandler):
    """An upload handler that a view sets."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        self.taken = io.BytesIO()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        self.taken.write(raw_data)

    def file_complete(self, file_size: int) -> Any:
        return SimpleUploadedFile(f"own-{self.file_name}", self.taken.getvalue())


def _form(request: HttpRequest) -> list[Any]:
    files = [
        [name, [[file.name, checksum(file.read())] for file in found]]
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
    return [checksum(request.body), checksum(request.body)]


def body_and_form(request: HttpRequest) -> list[Any]:
    return [checksum(request.body), *_form(request)]


def form_and_body(request: HttpRequest) -> list[Any]:
    return [*_form(request), checksum(request.body)]


def read(request: HttpRequest) -> list[Any]:
    return [
        checksum(request.read(7)),
        checksum(request.readline()),
        checksum(request.read()),
        checksum(request.read()),
    ]


def iterate(request: HttpRequest) -> list[Any]:
    return [checksum(line) for line in request]


def partly(request: HttpRequest) -> list[Any]:
    return [checksum(request.read(3)), *_form(request)]


def partly_and_body(request: HttpRequest) -> list[Any]:
    return [checksum(request.read(3)), checksum(request.body)]


def servers_own(request: HttpRequest) -> list[Any]:
    stream = request.META.get("wsgi.input")
    if stream is None:
        return []
    return [checksum(stream.read(int(request.META.get("CONTENT_LENGTH") or 0)))]


def nothing(request: HttpRequest) -> list[Any]:
    return []


def drf(request: HttpRequest) -> list[Any]:
    wrapped = Request(request, parsers=[JSONParser(), FormParser(), MultiPartParser()])
    data = wrapped.data
    fields = (
        {name: data.getlist(name) for name in data if name not in wrapped.FILES}
        if hasattr(data, "lists")
        else data
    )
    return [fields, [[name, checksum(file.read())] for name, file in wrapped.FILES.items()]]


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


def _views(take: Callable[[HttpRequest], list[Any]]) -> Any:
    def view(request: HttpRequest) -> JsonResponse:
        try:
            return JsonResponse({"took": take(request)})
        except Exception as error:  # Exceptions must not differ either.
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
for take in TAKES:
    view, aview = _views(take)
    urlpatterns += [path(f"sync/{take.__name__}", view), path(f"async/{take.__name__}", aview)]
