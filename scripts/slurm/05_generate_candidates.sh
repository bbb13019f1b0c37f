#!/bin/bash
# sbatch scripts/slurm/05_generate_candidates.sh webarena 5 [--overrides KEY=VALUE ...]
#                                                 BENCHMARK K [CONDITION]
#SBATCH --job-name=generate_candidates
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=48G
#SBATCH --time=24:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120
#R2V candidates --helpers=7%4

cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||
    { echo "no scripts/slurm/env.sh in $PWD: cd to your project's root, then the same sbatch line" >&2; exit 2; }
exec python -m r2v.slurm.job.runner generate_candidates "$@"
