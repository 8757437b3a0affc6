# Everything needed is installed by these targets into .venv and build/, from the package
# registries, with locked versions. Needed beforehand: python3 (3.11+) with venv, make, git.
# For what compares with Apache Kafka (bench, and some tests that are skipped without): mvn.
# For Spark (demo-spark, its part of bench, and tests that are skipped without): mvn and Java 17 or 21.
# For the clients in Go and JavaScript (their tests are skipped without): go 1.26, node and npm.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# More than there are cores: a third of what the tests take is waiting.
TESTS_IN_PARALLEL ?= 4
# Compiled files are kept: each worker would compile all tests anew.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest \
  -n $(TESTS_IN_PARALLEL) --dist loadgroup

MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
# By itself: it wants other versions of what the project needs, too.
AUDIT := build/pip-audit
MERMAID := build/mermaid/package/dist/mermaid.min.js

.PHONY: demo demo-kafka demo-spark test test-fast check docs reference bench mutants soak compatibility dist helm ursula lock clean

# With KEEP=1 a server stays up in the end, until Ctrl-C. With SECURE=1 it is another demo: TLS,
# logins and rights, and an intruder who is refused everywhere.
demo: $(VENV)/.demo
	$(BIN)/python -m deploy.demo $(if $(KEEP),--keep) $(if $(SECURE),--secure)

# The same with a real Kafka behind the proxy; then with three servers that share the cluster. With
# COORDINATION=zookeeper, a real ZooKeeper is the coordinator. Needs mvn and java.
demo-kafka: $(VENV)/.demo
	$(BIN)/python -m deploy.demo --kafka $(if $(filter zookeeper,$(COORDINATION)),--zookeeper)

# A copy by Spark out of a real Kafka, killed on the way and audited; needs mvn and Java 17 or 21.
demo-spark: $(VENV)/.spark
	$(BIN)/python -m deploy.demo.spark

# A test that fails beside the others and passes alone is printed as unstable (tests/second_look.py).
test: $(VENV)/.dev
	$(PYTEST) -p tests.second_look

# The inner loop: within a minute, without a server process, Java, or a network beyond loopback.
# FAST names what it runs, SLOW what of that it leaves out.
FAST := tests/unit tests/property/test_exhaustive.py tests/client/test_batch.py \
  tests/client/test_session.py tests/kafka_listener/test_golden.py \
  tests/kafka_listener/test_answers.py tests/kafka_listener/test_primitives.py
SLOW := tests/unit/engine/test_kafka_appender.py tests/unit/engine/test_repair_crashes.py \
  tests/unit/log/test_embedded_damage.py tests/unit/storage/test_faults.py

test-fast: TESTS_IN_PARALLEL = 2
test-fast: $(VENV)/.dev
	$(PYTEST) -q $(FAST) $(addprefix --ignore=,$(SLOW))
	@echo "Run: $(FAST)"
	@echo "Left out: $(SLOW), and all else that make test runs"

check: $(VENV)/.dev $(AUDIT)/.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MKDOCS) build
	$(BIN)/codespell
	$(BIN)/proselint check --config .proselintrc.json README.md CONTRIBUTING.md SECURITY.md docs
	$(BIN)/python -m deploy.package advisories --program $(AUDIT)/bin/pip-audit

# The documentation as a site, in build/site. With npm, its diagrams need no other host.
docs: $(VENV)/.dev $(if $(shell command -v npm),$(MERMAID))
	$(MKDOCS) build

# The pages of docs/reference that are made from the code.
reference: $(VENV)/.dev
	$(BIN)/python -m deploy.reference

bench: $(VENV)/.dev
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.ratio_chart
	$(BIN)/python -m tests.benchmarks.scale

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants

# The full counts of what `make test` runs a part of; some five hours on two cores. PATHS names a
# part of it: make soak PATHS="tests/copier tests/streams"
soak: TESTS_IN_PARALLEL = 2
soak: $(VENV)/.dev
	TESTS_SOAK=1 $(PYTEST) --timeout 7200 $(PATHS)

# docs/reference/compatibility.md anew, from a run of other people's clients and tools.
compatibility: $(VENV)/.dev
	rm -rf build/compatibility
	$(PYTEST) tests/clients --ignore tests/clients/test_report.py
	$(BIN)/python -m tests.clients.report

# sdist, wheel and bill of materials of the commit, in dist/: two builds have the same bytes.
dist: $(VENV)/.dev
	$(BIN)/python -m deploy.package dist

# Helm, for the tests of the chart that are skipped without it; minutes on a busy machine.
helm:
	GOBIN=$(CURDIR)/build/helm go install helm.sh/helm/v3/cmd/helm@v3.16.4

# A server of another project, which `make bench` compares with where it is; ten minutes, with cargo.
ursula:
	cargo install ursula --version 0.11.5 --locked --root build/ursula

# New locked versions, after a change of pyproject.toml. Extras name each other as pidlease[...]:
# the package itself is left out.
lock: $(VENV)/.dev
	$(BIN)/python -m pip install -q pip-tools
	for extra in demo demo-spark dev; do \
	  $(BIN)/pip-compile -q --strip-extras --generate-hashes --unsafe-package pidlease --upgrade \
	    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header \
	    --extra $$extra -o requirements/$$extra.txt pyproject.toml; \
	done
	echo pip-audit > build/audit.in
	$(BIN)/pip-compile -q --strip-extras --generate-hashes --upgrade --no-annotate \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header \
	  -o requirements/audit.txt build/audit.in
	$(BIN)/python -m deploy.package requirements

$(AUDIT)/.done: $(VENV)/bin/python requirements/audit.txt
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip --disable-pip-version-check -q install --no-deps --require-hashes \
	  -r requirements/audit.txt
	@touch $@

$(MERMAID):
	mkdir -p build/mermaid
	cd build/mermaid && npm pack --silent mermaid@11.12.1 && \
	  echo "3bd65ddefe97fb2e01d976a01d4078f8d773bfc56c6a75a9abf08b564ce0f8b2  mermaid-11.12.1.tgz" | \
	  sha256sum --check --quiet && tar xzf mermaid-11.12.1.tgz

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed (PYTHON=python3.12 make ...)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python3 -m venv failed: install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.demo: $(VENV)/bin/python requirements/demo.txt pyproject.toml
	$(PIP) install --require-hashes -r requirements/demo.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.spark: $(VENV)/bin/python requirements/demo-spark.txt pyproject.toml
	$(PIP) install --require-hashes -r requirements/demo-spark.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: $(VENV)/bin/python requirements/dev.txt pyproject.toml
	$(PIP) install --require-hashes -r requirements/dev.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.demo $(VENV)/.spark

clean:
	rm -rf $(VENV) build
