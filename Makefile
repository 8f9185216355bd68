# `make run` and `make test` need nothing but Python >= 3.11: each creates .venv and installs what it uses.
# Choose an interpreter with PYTHON=..., another environment with VENV=...

VENV ?= .venv
PY := $(VENV)/bin/python
# Modules are compiled when they are first imported, which most of them never are: half the time.
INSTALL := $(PY) -m pip --disable-pip-version-check -qq install --no-compile
# With the versions that the suite has passed with; where they cannot be had, with those that pyproject.toml admits.
PINNED := $(addprefix -c ,$(wildcard constraints.txt))
comma := ,
install = $(INSTALL) $(PINNED) $(1) || { echo "make: versions of constraints.txt are not to be had here:" \
	"installing those that pyproject.toml admits" >&2; $(INSTALL) $(1); }
OUT ?= out
# Each process begins with a part of the suite in one piece, so that a file's fixtures are made once; one that is done takes
# half of what another one has left.
SPREAD ?= -n auto --maxprocesses 4 --dist worksteal
# PART=3/6: the tests of one in six files, and with 4/6, 5/6 and so on the others.
PARTED = $(SPREAD) $(if $(PART),--part $(PART))
# Where tests marked cuda are: to collect all others takes longer.
COMPILED := tests/kernels/cuda tests/kernels/test_ops.py tests/kernels/test_top.py tests/kernels/test_pitfalls.py \
	tests/benchmarks/test_gpu_check.py

# Asked, not only found: a version manager may leave a python3.13 that refuses to start.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# Hundreds of tests start a process of ours: without compiled modules each would compile them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test thorough lint size oracle smoke cuda arm bench mutants clean gpu-check lock audit release campaign
.DEFAULT_GOAL := help

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

# Every command's own output would bury the report: it goes to files in $(OUT).
run: $(VENV)/.run ## measure the embedded model: context sweep, self-check of our kernels, what it can do: one HTML report in ./out
	@mkdir -p $(OUT)
	@$(VENV)/bin/ds4-bench -m "$$($(VENV)/bin/ds4 nano path)" \
		--ctx-start 256 --ctx-max 4096 --step-incr 256 --gen-tokens 64 -r 3 --store $(OUT)/runs.sqlite \
		--csv $(OUT)/embedded_model.csv --plot $(OUT)/embedded_model.svg --plot $(OUT)/embedded_model.png
	@echo "self-check: our compiled kernels against our own plain NumPy (other engines: --target, docs/reference/vectors.md)"
	@rm -rf $(OUT)/vectors
	@$(VENV)/bin/ds4-vectors capture $(OUT)/vectors \
		--backend reference -n 16 --repeat 1 > $(OUT)/capture.txt
	@$(VENV)/bin/ds4-vectors check $(OUT)/vectors -o $(OUT)/vectors.json --store $(OUT)/runs.sqlite
	@rm -f $(OUT)/answers.jsonl
	@$(VENV)/bin/ds4-eval -o $(OUT)/answers.jsonl --plain --store $(OUT)/runs.sqlite > $(OUT)/answers.txt
	@$(VENV)/bin/ds4-report build $(OUT)/embedded_model.csv $(OUT)/vectors.json $(OUT)/answers.jsonl \
		--title "The embedded model on this machine" -o $(OUT)/report.html

test: $(VENV)/.test ## run the test suite (without the thorough, oracle, peer, GPU and slow tests)
	@$(PY) -m pytest -q $(SPREAD)

thorough: $(VENV)/.test ## the tests that take longest and whose subjects make test samples
	@$(PY) -m pytest -q -m thorough $(PARTED)

lint: code types types-mac ## ruff, mypy (as on Linux and on macOS), and who may import whom; make -j2 lint: on two cores

.PHONY: code types types-mac
code: $(VENV)/.test
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo
	@$(PY) -m tests.size > /dev/null

types: $(VENV)/.test
	@$(PY) -m mypy

types-mac: $(VENV)/.test
	@$(PY) -m mypy --platform darwin --cache-dir .mypy_cache/darwin

size: $(VENV)/.test ## code lines by package, product and tests; fails where one is above its limit in pyproject.toml
	@$(PY) -m tests.size

oracle: $(VENV)/.oracle ## compare with Hugging Face transformers (installs torch)
	@$(PY) -m pytest -q -m "oracle and not slow" $(PARTED)

smoke: $(VENV)/.oracle ## real clients (SDKs, plain HTTP) against ds4-server; agents: ds4-server smoke --install
	@$(VENV)/bin/ds4-server smoke --client quick --install

cuda: $(VENV)/.cuda ## CUDA kernels, compiled and run without a GPU (installs numba-cuda and NVIDIA's compiler, 0.5 GB)
	@DS4_TEST_CUDA=compiled $(PY) -m pytest -q -m "cuda and not slow" $(PARTED) $(COMPILED)

TIER ?= C
arm: $(VENV)/.test ## under emulation, on AArch64: kernels of TIER=C or N, compiled here: the op table, golden models
	@$(PY) -m tests.arm $(TIER) -- $(SPREAD)

# Without a device this says so in one line, and nothing is tried. Where nothing can be installed, a Python that has
# numba-cuda does without make: python3 -m benchmarks.gpu_check (docs/explanation/cuda.md).
gpu-check: $(VENV)/.cuda ## on an NVIDIA GPU, in 8 minutes: right, how fast? A table and out/gpu_check.json
	@$(PY) -m benchmarks.gpu_check -o $(OUT)/gpu_check.json

bench: $(VENV)/.run ## measure this CPU: kernels, and a slice of Flash with real dimensions (0.9 GB in the cache)
	@$(PY) -m benchmarks.cpu --quick

COUNT ?= 8
SEED ?= 0
mutants: $(VENV)/.test ## do tests notice one-line mistakes? By hand, hours for all rooms; ROOM=reports COUNT=20 SEED=0
	@$(PY) -m tests.mutants $(if $(ROOM),--room $(ROOM)) --count $(COUNT) --seed $(SEED)

HOURS ?= 4
campaign: $(VENV)/.test ## attack parsers, files, sequences and the server for HOURS=4; goes on where it stopped; out/campaign
	@$(INSTALL) $(PINNED) atheris
	@$(PY) -m benchmarks.campaign --hours $(HOURS) -o $(OUT)/campaign

# torch brings NVIDIA's packages in versions of its own, which are not those of the extra "cuda".
lock: $(VENV)/.test ## the newest versions that pyproject.toml admits into constraints.txt; run all tests before you commit it
	@$(INSTALL) uv
	@mkdir -p $(OUT)
	@$(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --upgrade --no-annotate --no-header \
		--extra test --extra oracle pyproject.toml -o $(OUT)/locked.txt > /dev/null
	@{ echo "# make lock"; grep -Ev '^(nvidia|cuda|triton)' $(OUT)/locked.txt; } > constraints.txt

audit: $(VENV)/.test ## known vulnerabilities in the versions of constraints.txt (asks PyPI)
	@$(INSTALL) $(PINNED) pip-audit
	@$(VENV)/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt

release: $(VENV)/.test ## wheel and source archive of the last commit with SHA-256 sums: out/release
	@rm -rf $(OUT)/release $(OUT)/tree
	@mkdir -p $(OUT)/release $(OUT)/tree
	@git archive HEAD | tar -x -C $(OUT)/tree
	@cd $(OUT)/tree && $(abspath $(PY)) -c "from setuptools import build_meta as b; b.build_sdist('../release')" > /dev/null
	@cd $(OUT)/tree && $(abspath $(PY)) -c "from setuptools import build_meta as b; b.build_wheel('../release')" > /dev/null
	@rm -rf $(OUT)/tree
	@cd $(OUT)/release && { sha256sum ds4ref-* 2>/dev/null || shasum -a 256 ds4ref-*; } | tee SHA256SUMS

clean: ## remove the environment and everything generated in the tree
	rm -rf $(VENV) $(OUT) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 found; name one with PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is not a Python >= 3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "make: $(PYTHON) cannot create virtual environments" \
		"(Debian and Ubuntu: apt install python3-venv)" >&2; rm -rf $(VENV); exit 1; }

# One stamp for each set of packages, so that a second run installs nothing.
$(VENV)/.run: pyproject.toml $(wildcard constraints.txt) | $(VENV)/bin/python
	@echo "installing into $(VENV) (once)" >&2
	@$(call install,-e .)
	@touch $@

$(VENV)/.test: pyproject.toml $(wildcard constraints.txt) | $(VENV)/bin/python
	@echo "installing into $(VENV) (once)" >&2
	@$(call install,-e '.[test]')
	@touch $@ $(VENV)/.run

$(VENV)/.cuda: $(VENV)/.test
	@echo "installing numba-cuda and NVIDIA's compiler into $(VENV) (once)" >&2
	@$(call install,-e '.[test$(comma)cuda]' nvidia-cuda-nvcc nvidia-cuda-nvdisasm)
	@touch $@

$(VENV)/.oracle: $(VENV)/.test
	@echo "installing torch and transformers into $(VENV) (once)" >&2
	@$(call install,-e '.[test$(comma)oracle]')
	@$(INSTALL) --no-deps nemo_automodel==0.7.0 || echo "make: without nemo_automodel: its tests are skipped" >&2
	@touch $@
