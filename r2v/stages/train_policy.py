"""Stages 3a and 5, train_policy: clone the teacher (bc), then prefer what turned out better (preference).

    r2v bc          # perturbed trajectories -> final/, bc_report.json
    r2v preference  # bc's weights and candidate pairs -> final/, dpo_report.json

Both leave checkpoint-* and checkpoint-latest; a killed run goes on from there to the same weights.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from r2v import config as c
from r2v.artifact import Work
from r2v.contents import write_json
from r2v.stages import Stage

if TYPE_CHECKING:
    from r2v.policy.load import Loaded
    from r2v.policy.prompts import Encoder

TASKS = "tasks.json"
"""The ids of the tasks that a cloned policy has learnt from."""


@dataclass(frozen=True, kw_only=True)
class BCConfig:
    """What a cloned policy depends on."""

    policy: c.PolicyConfig
    phase: c.Phase
    max_new_tokens: int
    seed: int

    @classmethod
    def of(cls, config: c.Config) -> BCConfig:
        """The parts of the whole configuration that are read here."""
        return cls(policy=config.policy, phase=config.training.phase("bc"), seed=config.seed,
                   max_new_tokens=config.inference.max_new_tokens)


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig:
    """What a preference-trained policy depends on."""

    policy: c.PolicyConfig
    phase: c.Phase
    preference: c.PreferenceConfig
    max_new_tokens: int
    seed: int

    @classmethod
    def of(cls, config: c.Config) -> PreferenceConfig:
        """The parts of the whole configuration that are read here."""
        return cls(policy=config.policy, phase=config.training.phase("preference"), preference=config.preference,
                   seed=config.seed, max_new_tokens=config.inference.max_new_tokens)


def run_bc(cfg: BCConfig, work: Work) -> None:
    """Clone the successful training episodes; calibration episodes, where there are any, are measured on."""
    from r2v.data.store import read_episodes

    episodes = read_episodes(work.inputs["perturb"].file("trajectories.jsonl"))

    from r2v.policy.bc import train_bc
    from r2v.policy.load import load_policy

    held_out = [episode for episode in episodes if episode.metadata.split == "calibration"]
    cloned = [episode for episode in episodes if episode.metadata.split != "calibration"]
    write_json(work.folder / TASKS, sorted({episode.metadata.task_id for episode in cloned}))
    loaded = load_policy(cfg.policy, for_training=True, seed=cfg.seed)
    report = train_bc(cloned, loaded, _encoder(cfg, loaded), cfg.phase, work.folder, seed=cfg.seed, held_out=held_out)
    work.summary.update(_figures(report, "n_episodes", "n_steps", "train_match", "held_out_match", "weights_sha256"),
                        final_loss=report["losses"][-1]["loss"])


def run_preference(cfg: PreferenceConfig, work: Work) -> None:
    """Train bc's weights on the pairs of the candidates, or hand them on where preference.enabled is false."""
    if not cfg.preference.enabled:
        shutil.copytree(work.inputs["bc"].file("final"), work.folder / "final", dirs_exist_ok=True)
        work.summary.update(enabled=False)
        return
    from r2v.policy.load import load_policy
    from r2v.policy.preference import read_pairs, train_preference

    pairs = read_pairs(work.inputs["candidates"].file("preference_pairs.jsonl"))
    loaded = load_policy(cfg.policy, work.inputs["bc"].file("final"), for_training=True)
    report = train_preference(pairs, loaded, _encoder(cfg, loaded), cfg.phase, cfg.preference, work.folder,
                              seed=cfg.seed)
    work.summary.update(_figures(report, "n_pairs", "n_tasks", "reward_margin", "before", "after", "warnings",
                                 "weights_sha256"))


def _encoder(cfg: BCConfig | PreferenceConfig, loaded: Loaded) -> Encoder:
    from r2v.policy.prompts import Encoder

    return Encoder(loaded.tokenizer, max_seq_len=cfg.policy.max_seq_len, reserve=cfg.max_new_tokens)


def _figures(report: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: report[name] for name in names}


BC = Stage(version=1, config=BCConfig, run=run_bc)
PREFERENCE = Stage(version=1, config=PreferenceConfig, run=run_preference)
