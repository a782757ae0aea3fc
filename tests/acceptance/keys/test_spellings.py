"""Text of clients is counted in a normalized spelling."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator

from django_ratelimit_lua import ratelimit
from tests.unit.identity.test_text import SPACES
from tests.urls import SESSIONS


class WithoutCase(ModelBackend):
    """An authentication backend that ignores the case of names."""

    def authenticate(
        self, request: Any, username: Any = None, password: Any = None, **kwargs: Any
    ) -> Any:
        user = User.objects.filter(username__iexact=username).first()
        return user if user is not None and user.check_password(password) else None


class Login(LoginView):
    def render_to_response(self, context: Any, **kwargs: Any) -> HttpResponse:
        return HttpResponse("form")


guesses = [
    ratelimit(key=("ip", "post:username"), rate="2/h"),
    ratelimit(key="post:username", rate="3/h"),
]


urlpatterns = [path("login", method_decorator(guesses, name="dispatch")(Login).as_view())]


SPELLINGS = [
    *(f"ada{space}" for space in SPACES),
    *(f"{space}ada" for space in SPACES),
    "\uff41\uff44\uff41",
    "Ada",
    "ADA",
    "ａｄａ\u3000",
    "\u24d0da",
    "\u1d43d\u1d43",
    "\U0001d4b6da",
    " \tＡＤＡ\n",
]


@pytest.mark.django_db
def test_no_spelling_of_a_name_allows_another_guess(settings: Any) -> None:
    """The view is Django's login with a backend that ignores case."""
    settings.ROOT_URLCONF = __name__
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    settings.AUTHENTICATION_BACKENDS = [f"{__name__}.WithoutCase"]
    settings.MIDDLEWARE = [SESSIONS]
    settings.LOGIN_REDIRECT_URL = "/"
    User.objects.create_user("ada", password="lovelace")
    for spelling in SPELLINGS:
        data = {"username": spelling, "password": "lovelace"}
        assert AuthenticationForm(None, data).is_valid(), ascii(spelling)

    def guess(spelling: str, password: str, address: str) -> int:
        data = {"username": spelling, "password": password}
        return Client().post("/login", data, REMOTE_ADDR=address).status_code

    first = enumerate(SPELLINGS[:8])
    made = [guess(spelling, "wrong", f"192.0.2.{number % 2}") for number, spelling in first]
    assert sorted(made) == [200] * 3 + [429] * 5
    assert {guess(spelling, "lovelace", "192.0.2.9") for spelling in SPELLINGS} == {429}
    assert guess("grace", "wrong", "192.0.2.9") == 200
