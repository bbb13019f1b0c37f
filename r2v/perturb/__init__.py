"""Perturbations: what goes wrong in an environment on purpose, one file per category, composed in `schedule`.

`wrap` puts any environment under a condition; `offline` writes perturbed twins of stored episodes with the
same functions and the same draws.
"""

from r2v.perturb.category import call_failed, perturbation_type
from r2v.perturb.live import PerturbedEnv, wrap

__all__ = ["PerturbedEnv", "call_failed", "perturbation_type", "wrap"]
