# The whole of R2V's tooling. `make mrp` and `make test` need nothing but Python >= 3.11 (test: 3.11.5), make and pip.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: mrp test test-fast test-numerical test-all slurm sandbox browser swebench webarena check install install-dev lint types layers docs gpu-check mutate lock sbom release licences picture clean

mrp: .venv/.core  ## the whole pipeline on the bundled benchmark, in this process
	$(BIN)/python -m r2v run --config configs/mrp.yaml

WORKERS ?= 3  # of two processors: much of what the tests do is waiting, for Slurm, ranks, servers, browsers
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

SUITES ?=  # --whole-suites: every case of the suites in tests/trust, where `make test` plays a keyed draw

test: .venv/.dev slurm sandbox browser swebench webarena  ## every test; those on a real Slurm or in a real browser are skipped where it can't be installed
	$(PYTEST) $(SUITES)

test-fast: .venv/.dev  ## what to run between two edits, in about 75 CPU-seconds: all but tests/slow.txt and the real Slurm
	$(PYTEST) --fast -m "not slurm"

test-numerical: .venv/.dev  ## what compares floats, once more on the kernels of a processor without AVX-512
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(PYTEST) -m numerical

test-all: SUITES = --whole-suites
test-all: test test-numerical  ## everything, on both kinds of kernels, and every case of the big suites

slurm:  ## the Debian packages for tests/slurm, as root or with passwordless sudo; else one line says what lacks
	@bash tests/slurm/install.sh

sandbox:  ## bubblewrap, for code that a model wrote, as root or with passwordless sudo; else one line says what lacks
	@bash tests/sandbox/install.sh

browser: .venv/.dev  ## Debian's chromium and the extra [miniwob]; where they can't be had, a line says so
	@bash tests/envs/browser/install.sh
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then $(MAKE) -s .venv/.miniwob; \
		else echo "no BrowserGym for Python 3.13 on (its playwright has no build): the browser's tests are skipped"; fi

swebench: .venv/.core  ## the bundled SWE-bench instances and what grades them, from PyPI; else one line says what lacks
	@$(BIN)/python -m r2v swebench install >/dev/null || true

webarena: .venv/.core  ## the child interpreter of WebArena's worlds, from PyPI; else one line says what lacks
	@$(BIN)/python -m r2v webarena install >/dev/null || true

check: .venv/.dev lint types layers docs test test-numerical  ## what CI runs

LINTED := r2v tests benchmarks scripts examples docs
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema

lint: .venv/.dev  ## Python by ruff; prose by its rules; the workflow, the issue templates and the citation against their schemas
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/python scripts/prose.py
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.citation-file-format --default-filetype yaml CITATION.cff

types: .venv/.dev
	$(BIN)/mypy

# Not --quiet: MkDocs counts only the warnings that it prints, so that --strict would pass over every one of them.
docs: .venv/.dev  ## the documentation site, into site/; a broken link or an unknown name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

layers: .venv/.dev
	$(BIN)/lint-imports --no-cache

MODULES ?=

mutate: .venv/.mutate  ## would the tests notice an error? 300 changes to the code, one at a time; hours, in pieces that go on
	$(BIN)/python benchmarks/mutate.py $(MODULES)

gpu-check:  ## ten minutes on a machine with a GPU, from this source tree: what of training, decoding and planning is true on CUDA
	$(or $(wildcard $(BIN)/python),python3) benchmarks/gpu_check.py --out gpu-check

install: .venv/.core

HOOK = $(shell git rev-parse --git-path hooks/commit-msg 2>/dev/null)

install-dev: .venv/.dev  ## with the commit-msg hook, where .git can be written to and has none
	@if [ -n "$(HOOK)" ] && [ -w "$(dir $(HOOK))" ] && [ ! -e "$(HOOK)" ]; then cp scripts/commit-msg "$(HOOK)"; fi

# Each file that is installed has its SHA-256 in requirements/, or pip refuses it; the sets are whole, so nothing is resolved.
# What has no wheel is built with the locked setuptools, not with one fetched for it.
LOCKED := $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-build-isolation

.venv/.core: pyproject.toml requirements/torch-cpu.txt requirements/core.txt requirements/cuda.txt
	$(PYTHON) -m venv .venv
	@$(LOCKED) --only-binary :all: -r requirements/torch-cpu.txt 2>/dev/null \
		|| echo "no CPU build of torch where pip looks: taking PyPI's, with CUDA's libraries on Linux"
	$(LOCKED) --only-binary :all: -r requirements/core.txt
	@# PyPI's build of torch for Linux needs CUDA's libraries; the CPU build and other systems' do not.
	if $(BIN)/pip show torch | grep -q nvidia; then $(LOCKED) --only-binary :all: -r requirements/cuda.txt; fi
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	touch $@

.venv/.dev: .venv/.core requirements/dev.txt
	$(LOCKED) -r requirements/dev.txt
	$(BIN)/pip check
	touch $@

.venv/.mutate: .venv/.dev requirements/mutate.txt
	$(LOCKED) -r requirements/mutate.txt
	touch $@

.venv/.miniwob: .venv/.dev requirements/miniwob.txt
	$(LOCKED) -r requirements/miniwob.txt
	touch $@

UPGRADE ?=

lock: .venv/.dev  ## requirements/*.txt anew: what pyproject.toml newly asks for; UPGRADE=all or names: to their newest
	$(LOCKED) -r requirements/lock.txt
	$(BIN)/python scripts/lock.py $(UPGRADE)

sbom: .venv/.dev  ## dist/sbom.cdx.json: every locked package with version and hashes, as a CycloneDX bill of materials
	$(BIN)/python scripts/sbom.py

release: .venv/.dev  ## dist/: wheel and source distribution of HEAD, bill of materials, SHA256SUMS
	$(BIN)/python scripts/release.py

licences: .venv/.dev  ## do the licences of all that is installed allow what we do? What is copyleft is named
	$(BIN)/python scripts/licences.py

REPORT ?= results/report/mrp

picture: browser  ## docs/report.png, the picture of docs/report.md: the report of the last `make mrp` in the real Chromium
	$(BIN)/python scripts/picture.py $(REPORT) docs/report.png

clean:  ## the main job's results and all caches; what other benchmarks made stays
	$(PYTHON) scripts/clean.py
