#!/bin/bash
# sbatch scripts/slurm/09_ablations.sh webarena "1 2 3" [--overrides KEY=VALUE ...]
#                                       BENCHMARK [SEEDS] [CONDITION]
#SBATCH --job-name=ablations
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=48G
#SBATCH --time=48:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||
    { echo "no scripts/slurm/env.sh in $PWD: cd to your project's root, then the same sbatch line" >&2; exit 2; }
exec python -m r2v.slurm.job.runner ablations "$@"
