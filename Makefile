# The whole of R2V's tooling. `make mrp` and `make test` need nothing but Python >= 3.11 (test: 3.11.5), make and pip.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: mrp test test-fast test-numerical test-all slurm sandbox browser swebench webarena check install install-dev lint types layers docs gpu-check mutate lock sbom release licences picture clean

mrp: .venv/.core  ## run the whole pipeline on the bundled benchmark, in this process
	$(BIN)/python -m r2v run --config configs/mrp.yaml

WORKERS ?= 3  # on two processors: tests wait much of their time, for Slurm, ranks, servers, browsers
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

SUITES ?=  # --whole-suites: every case of the suites in tests/trust, of which `make test` runs a keyed sample

test: .venv/.dev slurm sandbox browser swebench webarena  ## run every test; skip those of a real Slurm or a real browser if it can't be installed
	$(PYTEST) $(SUITES)

test-fast: .venv/.dev  ## run quick tests between two edits, about 75 CPU-seconds: all but tests/slow.txt and the real Slurm
	$(PYTEST) --fast -m "not slurm"

test-numerical: .venv/.dev  ## run tests that compare floats, again on the kernels of a processor without AVX-512
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(PYTEST) -m numerical

test-all: SUITES = --whole-suites
test-all: test test-numerical  ## run all tests, on both kinds of kernels, with every case of the big suites

slurm:  ## install the Debian packages for tests/slurm, as root or with passwordless sudo; else print what is missing
	@bash tests/slurm/install.sh

sandbox:  ## install bubblewrap, for code that a model wrote, as root or with passwordless sudo; else print what is missing
	@bash tests/sandbox/install.sh

browser: .venv/.dev  ## install Debian's chromium and the extra [miniwob]; else print what is missing
	@bash tests/envs/browser/install.sh
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then $(MAKE) -s .venv/.miniwob; \
		else echo "no BrowserGym for Python 3.13 on (its playwright has no build): the browser's tests are skipped"; fi

swebench: .venv/.core  ## install the bundled SWE-bench instances and their graders, from PyPI; else print what is missing
	@$(BIN)/python -m r2v swebench install >/dev/null || true

webarena: .venv/.core  ## install the child interpreter of WebArena's environments, from PyPI; else print what is missing
	@$(BIN)/python -m r2v webarena install >/dev/null || true

check: .venv/.dev lint types layers docs test test-numerical  ## run all checks of CI

LINTED := r2v tests benchmarks scripts examples docs
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema

lint: .venv/.dev  ## check Python by ruff, prose by its rules, and the workflow, issue templates and citation by their schemas
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

# Not --quiet: MkDocs counts only the warnings that it prints, so --strict would ignore all of them.
docs: .venv/.dev  ## build the documentation site into site/; a broken link or an unknown name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

layers: .venv/.dev
	$(BIN)/lint-imports --no-cache

MODULES ?=

mutate: .venv/.mutate  ## run mutation tests: 300 changes to the code, one at a time; takes hours, resumes after a stop
	$(BIN)/python benchmarks/mutate.py $(MODULES)

gpu-check:  ## check decoding, training and planning on CUDA: ten minutes on a machine with a GPU, from this source tree
	$(or $(wildcard $(BIN)/python),python3) benchmarks/gpu_check.py --out gpu-check

install: .venv/.core

HOOK = $(shell git rev-parse --git-path hooks/commit-msg 2>/dev/null)

install-dev: .venv/.dev  ## install the checks' packages, and the commit-msg hook if .git is writable and has none
	@if [ -n "$(HOOK)" ] && [ -w "$(dir $(HOOK))" ] && [ ! -e "$(HOOK)" ]; then cp scripts/commit-msg "$(HOOK)"; fi

# pip refuses a file without its SHA-256 in requirements/; the sets are complete, so nothing is resolved.
# A package without a wheel is built with the locked setuptools, not with one fetched for it.
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

lock: .venv/.dev  ## write requirements/*.txt again, with new requirements of pyproject.toml; UPGRADE=all or names: newest versions
	$(LOCKED) -r requirements/lock.txt
	$(BIN)/python scripts/lock.py $(UPGRADE)

sbom: .venv/.dev  ## write dist/sbom.cdx.json: every locked package with version and hashes, as a CycloneDX bill of materials
	$(BIN)/python scripts/sbom.py

release: .venv/.dev  ## write dist/: wheel and source distribution of HEAD, bill of materials, SHA256SUMS
	$(BIN)/python scripts/release.py

licences: .venv/.dev  ## check that every installed package's licence is allowed; name the copyleft ones
	$(BIN)/python scripts/licences.py

REPORT ?= results/report/mrp

picture: browser  ## draw docs/report.png, the picture in docs/report.md: the report of the last `make mrp`, in a real Chromium
	$(BIN)/python scripts/picture.py $(REPORT) docs/report.png

clean:  ## remove the main job's results and all caches; results of other benchmarks stay
	$(PYTHON) scripts/clean.py
