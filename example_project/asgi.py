"""The site as an ASGI application, with its static files."""

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

from django_ratelimit_lua.asgi import finish_at_shutdown

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
application = finish_at_shutdown(ASGIStaticFilesHandler(get_asgi_application()))
