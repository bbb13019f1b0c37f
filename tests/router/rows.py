"""Feature rows with a known relation between features and gain."""

from __future__ import annotations

from collections.abc import Callable

from r2v.randomness import generator
from r2v.router.features import FEATURE_VERSION
from r2v.router.labels import FeatureRow
from r2v.router.models import sigmoid


def true_probability(x: float) -> float:
    """Return P(y = 1 | the one feature that matters)."""
    return sigmoid(2 * x - 0.5)


def stepped_probability(x: float, other: float) -> float:
    """Return P(y = 1) by two thresholds that act together, which no curve of one score can express."""
    return 0.1 + 0.7 * (x > 0.3 and other > -0.5) + 0.2 * (x < -1)


def make_row(
    number: int,
    steps_per_task: int = 4,
    split: str | None = None,
    probability: Callable[[float, float], float] = lambda x, other: true_probability(x),
) -> FeatureRow:
    """Return row `number`: a feature x, which is predictive, another, which is under some probabilities, and a
    constant; every third task calibrates."""
    draw = generator("router-rows", number)
    task = number // steps_per_task
    x, gains, other = draw.gauss(0, 1), draw.random(), draw.gauss(0, 1)
    gain = gains < probability(x, other)
    return FeatureRow(
        state_id=f"t{task:05d}/s1#{number % steps_per_task}",
        episode_id=f"t{task:05d}/s1",
        task_id=f"t{task:05d}",
        split=split or ("calibration" if task % 3 == 0 else "train"),
        step_idx=number % steps_per_task,
        actor="slm",
        feature_version=FEATURE_VERSION,
        features={"page.noise": other, "progress.constant": 3.0, "uncertainty.x": x},
        q_slm=0.0,
        q_llm=float(gain),
        disagrees=bool(draw.random() < 0.5),
        slm_episode_success=draw.random() < 0.5,
        condition="noisy",
        perturbation_seed=101,
        cost_slm=1.0,
        cost_llm=30.0,
    )
