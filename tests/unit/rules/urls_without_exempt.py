"""A URLconf none of whose views is exempt."""

from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("account/", lambda request: HttpResponse())]
