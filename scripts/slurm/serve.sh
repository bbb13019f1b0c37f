#!/bin/bash
# A bundle in front of agents on a node: sbatch scripts/slurm/serve.sh BUNDLE --llm openai:gpt-6.1-terra --overrides teacher.max_usd=20
# Agents reach it at the node's address, or by `ssh -L 8484:NODE:8484`; its keys are in data/served/default/keys.
#SBATCH --job-name=serve
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:1
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --output=logs/%x_%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120

cd "${SLURM_SUBMIT_DIR:-.}" && source scripts/slurm/env.sh ||
    { echo "no scripts/slurm/env.sh in $PWD: cd to your project's root, then the same sbatch line" >&2; exit 2; }
exec python -m r2v serve "$@"
