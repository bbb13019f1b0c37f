# Sourced first by every script of this folder: loads your cluster's software, then the Python that has R2V.
# Edit here, once; the scripts themselves need no change (their headers: `r2v cluster set profile=... gpu=...`).

# module load cuda/12.1

if [ -f .venv/bin/activate ]; then source .venv/bin/activate; fi
# source "$(conda info --base)/etc/profile.d/conda.sh" && conda activate r2v

unset SLURM_EXPORT_ENV  # left by `sbatch --export=...`: an srun of the job would get an empty environment
set -euo pipefail
command -v python >/dev/null ||
    { echo "scripts/slurm/env.sh: no python here; name your environment in it (in R2V's checkout: make install)" >&2; exit 5; }
