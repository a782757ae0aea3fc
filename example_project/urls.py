"""Where everything is."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from . import api, views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", views.home, name="home"),
    path("login/", views.Login.as_view(), name="login"),
    path("search/", views.search, name="search"),
    path("export/", views.export, name="export"),
    path("webhook/", views.webhook, name="webhook"),
    path("clock/", views.clock, name="clock"),
    path("api/", api.Orders.as_view(), name="api"),
    path("orders/", views.orders, name="orders"),
    path("address/", views.address, name="address"),
    path("payments/", views.payment_desk, name="payments"),
    path("payments/pay/", views.pay, name="pay"),
    path("ratelimit/", include("django_ratelimit_lua.contrib.gateway.urls")),
    path("favicon.ico", RedirectView.as_view(url=static("icon.svg"))),
    path("report/", views.report, name="report"),
    path("reset/", views.reset, name="reset"),
]
