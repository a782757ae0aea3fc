"""A URLconf without exempt views."""

from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("account/", lambda request: HttpResponse())]
