#!/bin/bash
# sbatch scripts/slurm/03_train_policy.sh webarena noisy all [--overrides KEY=VALUE ...]
#                                          BENCHMARK [CONDITION] [bc | preference | all]
#SBATCH --job-name=train_policy
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:2
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=60G
#SBATCH --time=48:00:00
# For preference alone (bc, and a job that does both, have the time above):
#R2V preference --time=24:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||
    { echo "no scripts/slurm/env.sh in $PWD: cd to your project's root, then the same sbatch line" >&2; exit 2; }
exec python -m r2v.slurm.job.runner train_policy "$@"
