# `make demo` and `make test` need Python 3.11 or newer, pip and make; they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
PEERS := .tox/peers
# Most tests wait for something, so there are more workers than processors. A file stays in one of them, for its fixtures.
WORKERS ?= --numprocesses=6 --dist=loadfile --no-loadscope-reorder

# The tests start hundreds of processes: compiled once, they start faster, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-gateway test coverage lint bench bench-peers faults docs screenshots dist format messages
demo: $(VENV)/demo
	$(RUN)/python -m example_project

demo-gateway: $(VENV)/demo-gateway
	$(RUN)/python -m example_project.gateway

test: $(VENV)/test
	$(RUN)/python -m tests $(WORKERS) $(ARGS)

# Lines cost little to trace from Python 3.12 on, and half as much time again before that.
coverage: $(VENV)/test
	$(RUN)/python -m coverage erase
	$(RUN)/python -m coverage run -m tests $(WORKERS) $(ARGS)
	$(RUN)/python -m coverage combine --quiet
	$(RUN)/python -m coverage report $(if $(ARGS),--fail-under=0)

# The name of an override is a part of a sentence, without a line break at its end.
TEMPLATES := $(shell find django_ratelimit_lua example_project -name "*.html" -not -name override_name.html)
lint: $(VENV)/lint
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/djade --target-version 5.2 --check $(TEMPLATES)
	$(RUN)/zizmor --offline --quiet .github

bench: $(VENV)/test
	$(RUN)/python -m tests.bench

# Other limiters do the same work in the same run, which takes some ten minutes. Some of them want an older redis-py.
bench-peers: $(PEERS)/bench
	$(PEERS)/bin/python -m tests.bench.peers --write $(ARGS)

faults: $(VENV)/test
	$(RUN)/python -m tests.tools.faults

docs: $(VENV)/docs
	$(RUN)/python -m docs.tables
	$(RUN)/python -m docs.gateway_files
	$(RUN)/python -m docs.plots
	$(RUN)/python -m docs.llms
	$(RUN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# The pictures of the admin, and the moving one of the README, which need chromium and chromedriver.
screenshots: $(VENV)/docs
	$(RUN)/python -m docs.screenshots
	$(RUN)/python -m docs.moving_picture

# A wheel, made from the source archive, with which the tutorial is followed in a fresh environment.
dist: $(VENV)/dist
	rm -rf dist
	$(RUN)/python -m build
	$(RUN)/python -m twine check --strict dist/*
	$(RUN)/check-wheel-contents dist/*.whl
	$(RUN)/python -m tests.tools.tutorial dist/*.whl
	@$(RUN)/python -c "import setup; print(setup.report())"

# Needs gettext. `LANGUAGES="--locale de --locale fr"` begins another language.
LANGUAGES ?= --all
messages: $(VENV)/test
	cd django_ratelimit_lua && ../$(RUN)/python -m django makemessages $(LANGUAGES) --no-location --no-wrap --no-obsolete
	cd django_ratelimit_lua && ../$(RUN)/python -m django compilemessages
	for catalogue in django_ratelimit_lua/locale/*/LC_MESSAGES/*.po; do msgattrib --untranslated --no-obsolete $$catalogue; done

format: $(VENV)/lint
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .
	$(RUN)/djade --target-version 5.2 $(TEMPLATES) || true # It fails if it has changed a file.

$(RUN)/python:
	$(PYTHON) -m venv $(VENV)

$(PEERS)/bench: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[bench]'
	@touch $@

# What each of these needs is an extra of the package of the same name.
$(VENV)/demo $(VENV)/demo-gateway $(VENV)/test: $(VENV)/%: setup.cfg pyproject.toml | $(RUN)/python
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/lint $(VENV)/docs $(VENV)/dist: $(VENV)/%: setup.cfg pyproject.toml | $(RUN)/python
	$(RUN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,test,$*]'
	@touch $@
