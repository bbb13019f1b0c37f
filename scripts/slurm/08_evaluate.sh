#!/bin/bash
# sbatch scripts/slurm/08_evaluate.sh webarena noisy "1 2 3 4 5" "r2v slm_only" [--overrides KEY=VALUE ...]
#                                      BENCHMARK [CONDITION] [SEEDS] [METHODS]
#SBATCH --job-name=evaluate
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
#R2V evaluate --helpers=15%8

cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||
    { echo "no scripts/slurm/env.sh in $PWD: cd to your project's root, then the same sbatch line" >&2; exit 2; }
exec python -m r2v.slurm.job.runner evaluate "$@"
