"""Profiles: settings for a size of model, beneath the configuration: defaults < profile < file < flags < overrides.

    profile: lora-1b
    policy: {model_name: meta-llama/Llama-3.2-1B-Instruct}

The defaults are those of the bundled student, which is `tiny`. Learning rates are starting points, tried on nothing
here: for adapters about ten times those of full training, in the range of QLoRA (arXiv 2305.14314: 2e-4 for 7 B and
13 B, 1e-4 above). A batch is 16 sequences an update throughout, in micro-batches of one, which fit the card that each
profile names (a test plans them). On a GPU, models above 100 M parameters train in bfloat16 with gradient checkpointing
whatever the profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

AUTO, TINY = "auto", "tiny"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Settings of one size of model."""

    name: str
    """As `profile` spells it."""
    for_models: str
    """Sizes that it is meant for, in words."""
    card: str
    """The smallest GPU that all of its stages fit at the largest of these sizes, as `r2v plan --gpu` takes it."""
    largest: float = 0
    """Parameters of the largest model that is given this profile by itself; 0: it is only given by name."""
    values: dict[str, Any] = field(default_factory=dict)
    """Sections with the keys that it sets."""


def _values(
    *, rank: int, lr: float, dpo_lr: float, micro_batch: int, four_bit: bool = False, rows: int = 16
) -> dict[str, Any]:
    phase = {"num_epochs": 2.0, "lr": lr}
    return {
        "policy": {"lora_r": rank, "load_in_4bit": four_bit, "max_seq_len": 8192},
        "training": {
            "num_epochs": 3.0,
            "lr": lr,
            "batch_size": micro_batch,
            "gradient_accumulation_steps": 16 // micro_batch,
            "warmup_ratio": 0.05,
            "preference": {"num_epochs": 1.0, "lr": dpo_lr, "weight_decay": 0.0},
            "verifier": phase,
        },
        "inference": {"max_new_tokens": 256},
        "rollout": {"batch_size": rows},
    }


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(name=TINY, for_models="the bundled student, up to 20 M parameters", card="8GiB", largest=20e6),
        Profile(
            name="lora-0.5b",
            for_models="up to 0.8 B parameters, by adapters",
            card="24GiB",
            largest=0.8e9,
            values=_values(rank=16, lr=3e-4, dpo_lr=3e-5, micro_batch=1),
        ),
        Profile(
            name="lora-1b",
            for_models="up to 3.5 B parameters, by adapters",
            card="40GiB",
            largest=3.5e9,
            values=_values(rank=16, lr=2e-4, dpo_lr=2e-5, micro_batch=1),
        ),
        Profile(
            name="lora-8b",
            for_models="up to 16 B parameters, by adapters",
            card="80GiB",
            largest=16e9,
            values=_values(rank=16, lr=1e-4, dpo_lr=1e-5, micro_batch=1),
        ),
        Profile(
            name="qlora-8b",
            for_models="up to 16 B parameters, by adapters on a 4-bit base",
            card="48GiB",
            values=_values(rank=16, lr=1e-4, dpo_lr=1e-5, micro_batch=1, four_bit=True, rows=8),
        ),
        Profile(
            name="full-1b",
            for_models="up to 3.5 B parameters, all weights",
            card="80GiB",
            values=_values(rank=0, lr=1e-5, dpo_lr=5e-7, micro_batch=1, rows=8),
        ),
    )
}
"""Every profile, the smallest first."""

PAID_SMALL = "paid-small"
"""A whole pipeline for little money; it goes with any size of model: paid-small, or paid-small+lora-8b."""
_PAID_SMALL = {
    "teacher.max_usd": 20.0,
    "teacher.max_tokens": 1024,
    "data.num_episodes": 40,
    "data.seeds": [1],
    "verifier.num_tasks": 15,
    "candidates.num_samples": 3,
    "candidates.num_tasks": 10,
    "preference.accept_tasks": 20,
    "preference.accept_seeds": [11],
    "router.num_tasks": 20,
    "router.num_calibration_tasks": 20,
    "router.rounds": 1,
    "router.round_tasks": 15,
    "router.round_budgets": [0.2],
    "evaluation.num_tasks": 20,
    "evaluation.seeds": [1],
    "evaluation.conditions": ["noisy"],
    "evaluation.budgets": [0.2],
    "evaluation.oracle_tasks": 0,
    "evaluation.gains_tasks": 5,
    "ablations.names": ["no_rounds"],
    "ablations.seeds": [1],
}
PROFILE_NAMES = (AUTO, *PROFILES, PAID_SMALL, *(f"{PAID_SMALL}+{name}" for name in PROFILES))
"""All that `profile` may say."""


def values_of(profile: str) -> list[dict[str, Any]]:
    """The settings that a profile's name stands for, each beneath the next."""
    return [_sections(_PAID_SMALL) if name == PAID_SMALL else PROFILES[name].values for name in profile.split("+")]


def _sections(values: dict[str, Any]) -> dict[str, Any]:
    """Values by dotted key as sections with keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        found.setdefault(section, {})[name] = value
    return found
