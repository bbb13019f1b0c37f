#!/bin/bash
# sbatch scripts/slurm/04_train_verifier.sh webarena [CONDITION] [--overrides KEY=VALUE ...]
#SBATCH --job-name=train_verifier
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=48G
#SBATCH --time=12:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||
    { echo "no scripts/slurm/env.sh in $PWD: cd to your project's root, then the same sbatch line" >&2; exit 2; }
exec python -m r2v.slurm.job.runner train_verifier "$@"
