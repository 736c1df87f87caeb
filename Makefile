# One verb per job; `make help` tells which. Everything is installed into .venv from hash-pinned lock files.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q --disable-pip-version-check --require-hashes
STACK := $(PY) -m stack
PYTEST := $(PY) -m pytest
UV_COMPILE := $(VENV)/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -q
WORKERS := $(shell expr $$(nproc) + 1) # one more than cores: some tests wait
NUMBERS = $(foreach name,READ_MANAGERS BROKERS WRITE_MANAGERS,$(if $($(name)),MYQUEUE_$(name)=$($(name))))
SOURCES := .ci $(wildcard benchmarks broker client config db examples read_manager service spark stack tests write_manager)

.DEFAULT_GOAL := help
.PHONY: help demo up down status stop start scale promote logs spark spark-install env check unit test slow exhaustive test-all compose-test soak bench clean lock
.SUFFIXES:
# A stack starts ten processes, and tests restart them: none should compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

help: ## what there is
	@echo "make <verb>:"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | \
		awk -F':.*## ' '{printf "  %-13s %s\n", $$1, $$2}'

# ---- the stack ----

demo: $(VENV)/.run ## start everything and run the invoice pipeline
	@$(STACK) up
	@$(PY) -m examples.invoices --url "$$($(STACK) url)"

up: $(VENV)/.run ## start the stack, wait until it answers, print its URL: make up [READ_MANAGERS=4] [BROKERS=5] [WRITE_MANAGERS=2]
	@$(NUMBERS) $(STACK) up

down: $(VENV)/.run ## stop the stack, keep its data
	@$(STACK) down

status: $(VENV)/.run ## how every process is (STATUS_FORMAT=json for machines); exit 3 unless all are healthy
	@$(STACK) status

stop: $(VENV)/.run ## end one service and keep it down: make stop NAME=broker-2
	@$(STACK) stop "$(NAME)"

start: $(VENV)/.run ## bring a stopped service back: make start NAME=broker-2
	@$(STACK) start "$(NAME)"

scale: $(VENV)/.run ## while it runs, other numbers of read managers or more brokers: make scale READ_MANAGERS=3
	@$(NUMBERS) $(STACK) scale

promote: $(VENV)/.run ## make a PostgreSQL standby the primary: make promote NAME=postgres-2 [ANYWAY=1]
	@$(STACK) promote $(if $(ANYWAY),--anyway) "$(NAME)"

logs: $(VENV)/.run ## the last lines of the logs: make logs [NAME=broker-2] [FOLLOW=1]
	@$(STACK) logs $(if $(FOLLOW),--follow) $(NAME)

spark: $(VENV)/.spark ## start the stack if it is down, and run the Spark metrics jobs on their schedule until Ctrl-C
	@$(STACK) up
	@MYQUEUE_URL="$$($(STACK) url)" $(PY) -m spark scheduler

spark-install: $(VENV)/.spark ## install Spark, and a Java for it, and start nothing

env: ## write .env with fresh secrets, for docker compose
	@$(PYTHON) config/make_env.py

clean: ## stop the stack and remove its data
	@if [ -e $(VENV)/.run ]; then $(STACK) clean; fi

# ---- the code ----

check: $(VENV)/.dev $(VENV)/.spark ## lint, format, types, import rules, no machine-bound addresses
	$(VENV)/bin/ruff check $(SOURCES)
	$(VENV)/bin/ruff format --check $(SOURCES)
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) .ci/portable.py

unit: $(VENV)/.dev $(VENV)/.spark ## unit and contract tests, in under a minute
	$(PYTEST) -n $(WORKERS) --dist worksteal tests/unit tests/contract -m "not slow and not exhaustive"

test: $(VENV)/.dev $(VENV)/.spark ## all tests but the slow ones; starts its own stacks on free ports: make test [AT_A_TIME=2]
	$(PY) -m tests.suites $(if $(AT_A_TIME),--at-a-time=$(AT_A_TIME))

slow: $(VENV)/.dev $(VENV)/.spark ## the slow tests; those in containers alone, after the others
	$(PY) -m tests.suites --slow
	$(PYTEST) -m slow tests/compose

exhaustive: $(VENV)/.dev ## every bit, every lost sector, every call: the proofs of storage that make unit samples
	$(PYTEST) -n $(WORKERS) --dist worksteal -m exhaustive tests/unit

test-all: $(VENV)/.dev $(VENV)/.spark ## all tests
	$(PYTEST) tests

compose-test: $(VENV)/.dev ## build the images, run the stack in containers, scale it, kill parts of it; skips where Docker cannot run
	$(PY) -m tests.compose

soak: $(VENV)/.dev ## simulate replication under faults, seed after seed, then break managers and PostgreSQL: make soak MINUTES=10 ROUNDS=10
	$(PY) -m tests.simulation --first $$(date +%s) --seconds $$(( $(or $(MINUTES),10) * 60 ))
	$(PY) -m tests.fault --seed $$(date +%s) --rounds $(or $(ROUNDS),10)

bench: $(VENV)/.bench $(VENV)/.spark ## measure this and its peers on this machine, side by side (QUICK=1: a first look in a few minutes)
	$(PY) -m benchmarks $(if $(QUICK),--quick)

lock: $(VENV)/.dev ## pin all requirements again
	$(UV_COMPILE) requirements/run.in -o requirements/run.txt
	$(UV_COMPILE) -c requirements/run.txt requirements/services.in -o requirements/services.txt
	$(UV_COMPILE) requirements/patroni.in -o requirements/patroni.txt
	$(UV_COMPILE) requirements/dev.in -o requirements/dev.txt
	$(UV_COMPILE) requirements/spark.in -o requirements/spark.txt
	$(UV_COMPILE) requirements/bench.in -o requirements/bench.txt

# ---- the virtual environment: a stamp per lock file, so that nothing is installed twice ----

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else 2)' || \
		{ echo "myqueue needs Python 3.11 to 3.13, but $(PYTHON) is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@[ "$$(uname -sm)" = "Linux x86_64" ] || \
		{ echo "myqueue runs on Linux x86-64, not on $$(uname -sm)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements/run.txt client/pyproject.toml | $(VENV)/bin/python
	@echo "installing what the stack runs on into $(VENV) (about 400 MB on disk, a minute or so, only this once) ..."
	@$(PIP) -r requirements/run.txt
	@$(PY) -m pip install -q --disable-pip-version-check --no-index --no-deps --no-build-isolation -e client
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	@echo "installing what checks and tests need into $(VENV) (about 350 MB on disk, a minute, only this once) ..."
	@$(PIP) -r requirements/dev.txt
	@touch $@

$(VENV)/.spark: requirements/spark.txt $(VENV)/.run
	@echo "installing Spark and a Java for it into $(VENV) (about 800 MB on disk, a minute or two, only this once) ..."
	@$(PIP) -r requirements/spark.txt
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.run
	@echo "installing the peers to compare with into $(VENV) (about 60 MB on disk, a few seconds, only this once) ..."
	@$(PIP) -r requirements/bench.txt
	@touch $@
