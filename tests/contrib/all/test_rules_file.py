"""A file of rules with every field is imported and exported unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimit_lua.management.rules_yaml import apply, export, plan
from django_ratelimit_lua.models import RateLimitRule

pytestmark = pytest.mark.django_db(transaction=True)
FILE = """\
- name: health
  order: -5
  path:
  - /health/
  - /ready
  - /static/**
  exempt: true
- name: accounts
  description: 'A limit for accounts.

    It has two lines.'
  order: 1
  route: accounts:login
  method:
  - POST
  - PUT
  key:
  - ip
  - post:username
  rate: 5/15m
  message: 'Too many attempts: wait.'
  ban_after: 3
  ban_window: 10m
  ban_for: 10m,1h,1d
- name: api
  order: 2
  path: /api/
  audience: authenticated
  key: user
  rate: 60/m
  tiers:
  - group: plan:gold
    rate: 1000/m
  - group: pro
    rate: 600/m
    burst: 100
  algorithm: token_bucket
  burst: 20
- name: search
  order: 3
  group: search
  key: ip
  rate:
  - 10/s
  - 100/m
  tiers:
  - group: staff
    rate:
    - 20/s
    - 1000/h
  cost: 2
- name: exports
  order: 4
  path: /export/**
  method:
  - GET
  audience:
  - group:editors
  - group:Überprüfer
  key: user
  rate: 20/d
  algorithm: fixed_window
  align: day
  time_zone: Europe/Berlin
- name: reports
  order: 5
  path: /report/
  key:
  - header:X-Api-Key
  - cookie:device
  rate: '2'
  tiers:
  - group: pro
    rate: '9'
  algorithm: concurrency
- name: leaky
  order: 6
  path: /slow/
  key: ip
  rate: 5/s
  algorithm: leaky_bucket
  queue: 10
  max_wait: 1.5
  on_store_error: open
- name: log
  order: 7
  path: /log/
  key: ip
  rate: 100/2h
  algorithm: sliding_log
  count_denied: true
  mode: 'off'
- name: window
  order: 8
  path: /window/
  audience: staff
  key: all
  rate: 100000/w
  algorithm: sliding_window
  segments: 60
  mode: shadow
- name: leased
  order: 9
  path: /leased/
  audience: anonymous
  key: path
  rate: 1000/s
  algorithm: token_bucket
  lease: 50
  durable: true
- name: 'on'
  order: 10
  path: /on/
  key: exact:get:q
  rate: 0/m
  cost: 0
  algorithm: fixed_window
  on_store_error: closed
  split: true
- name: edge
  order: 11
  rate: 100/m
  descriptor:
  - generic_key=edge
  - remote_address
"""


def test_a_file_with_every_field_imports_and_exports_unchanged(settings: Any) -> None:
    """The call site that a rule replaces is not written: it is the name of the rule."""
    settings.RATELIMIT_KEYS = {"plan": "example_project.keys.plan"}
    apply(plan(FILE))
    assert export() == FILE.replace("  group: search\n  key: ip\n", "  key: ip\n")
    assert plan(FILE) == []
    assert RateLimitRule.objects.count() == FILE.count("- name: ")
