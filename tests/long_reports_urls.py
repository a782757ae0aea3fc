"""The URLs of a demo whose reports take a minute."""

from example_project import views
from example_project.urls import urlpatterns

__all__ = ["urlpatterns"]
views.LINES = 240
