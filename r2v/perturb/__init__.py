"""Perturbations of environments: one file per category, composed in `schedule`.

`wrap` applies a condition to any environment; `offline` writes perturbed twins of stored episodes with the same
functions and draws.
"""

from r2v.perturb.category import call_failed, perturbation_type
from r2v.perturb.live import PerturbedEnv, wrap

__all__ = ["PerturbedEnv", "call_failed", "perturbation_type", "wrap"]
