#!/bin/bash
# bash run_all.sh webarena      the same as: bash scripts/slurm/run_all.sh webarena
exec bash "$(dirname "${BASH_SOURCE[0]}")/scripts/slurm/run_all.sh" "$@"
