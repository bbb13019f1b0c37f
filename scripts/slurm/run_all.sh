#!/bin/bash
# bash scripts/slurm/run_all.sh webarena | swebench | desk | all [--dry-run | --here] [--from JOB] [--overrides ...]
# Submits the whole pipeline, one job a stage with its dependencies, and returns. `r2v run_all --help` has the rest.

cd "$(dirname "${BASH_SOURCE[0]}")/../.." && source scripts/slurm/env.sh || exit 2
exec python -m r2v run_all "$@"
