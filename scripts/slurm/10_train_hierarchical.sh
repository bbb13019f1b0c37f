#!/bin/bash
# sbatch scripts/slurm/10_train_hierarchical.sh [--overrides KEY=VALUE ...]     takes configs/hierarchical.yaml
#                                                gsm8k           takes configs/hierarchical/gsm8k.yaml, and so on
#                                                [BENCHMARK] [CONDITION]         takes configs/BENCHMARK/CONDITION.yaml
#SBATCH --job-name=train_hierarchical
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:2
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=60G
#SBATCH --time=48:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR2@120

cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||
    { echo "no scripts/slurm/env.sh in $PWD: cd to your project's root, then the same sbatch line" >&2; exit 2; }
exec python -m r2v.slurm.job.runner train_hierarchical "$@"
