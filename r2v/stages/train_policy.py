"""Stages 3a and 5, train_policy: behaviour cloning of the teacher (bc), then preference optimisation (preference).

    r2v train_policy --stage bc           # perturbed trajectories -> final/, bc_report.json
    r2v train_policy --stage preference   # bc's weights and candidate pairs -> final/, dpo_report.json

The preference-trained policy replaces the cloned one only if it succeeds more often on calibration tasks
(`preference.accept`); else the clone is published again, which manifest, log and report record.

Both write checkpoint-* and checkpoint-latest, from which a killed run resumes to the same weights. With several GPUs
(or `training.ranks`) the training alone runs in one process for each: this module, given the attempt's folder. The
command that runs the stage keeps its lease and writes its manifest.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from r2v import config as c
from r2v import distributed
from r2v.data.tools import TOOLS_FILE, Tools, read_tools, write_tools
from r2v.envs.base import WORLDLESS, require_playable
from r2v.errors import UsageError
from r2v.evaluation.acting.acting_settings import ActingSettings
from r2v.log import logger
from r2v.stages import Stage, attempt_of_rank
from r2v.stages.accept_policy import accept_or_hand_on, hand_on
from r2v.storage.artifact import Work
from r2v.storage.files import write_json
from r2v.storage.integrity import Artifact

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.policy.load import Loaded
    from r2v.policy.prompt_encoder import Encoder

TASKS = "tasks.json"
"""File of the ids of the tasks that a policy was cloned from."""


@dataclass(frozen=True, kw_only=True)
class BCSettings:
    """Settings of a cloned policy."""

    policy: c.PolicyConfig
    phase: c.Phase
    max_new_tokens: int
    seed: int
    env: c.EnvConfig | None = field(default=None, metadata=c.IF_GIVEN)
    """Environment whose tools are in the policy's prompts; None for none."""
    held_out_tasks: float | None = field(default=None, metadata=c.IF_GIVEN)
    """Share of tasks held out for an imputed router and for measuring; None if every task is cloned."""
    prompt: int | None = field(default=None, metadata=c.IF_GIVEN)
    """`PolicyConfig.prompt_version`."""
    replaced: bool | None = field(default=None, metadata=c.IF_GIVEN)
    """True if episodes with replaced observations are cloned too; None if they are refused."""
    acting: ActingSettings | None = field(default=None, metadata=c.RUNTIME)
    """Settings of the readiness measurement, which changes no weights; None without a world."""
    needs_world: ClassVar = False
    """The tools were recorded with the data; only data of an earlier R2V needs a fresh world for them."""

    @classmethod
    def of(cls, config: c.Config) -> BCSettings:
        """Return the part of a configuration that cloning reads."""
        return cls(
            policy=config.policy.trained(),
            phase=config.training.phase("bc"),
            seed=config.seed,
            max_new_tokens=config.inference.max_new_tokens,
            env=_env_of_tools(config),
            prompt=config.policy.prompt_version,
            held_out_tasks=config.router.left_out_of_cloning,
            replaced=True if "replace" in config.perturb.constructions else None,
            acting=None if config.env.benchmark in WORLDLESS else ActingSettings.of(config),
        )


@dataclass(frozen=True, kw_only=True)
class PreferenceSettings:
    """Settings of a preference-trained policy."""

    policy: c.PolicyConfig
    phase: c.Phase
    preference: c.PreferenceConfig
    max_new_tokens: int
    seed: int
    env: c.EnvConfig | None = field(default=None, metadata=c.IF_GIVEN)
    """As in `BCSettings`."""
    acting: ActingSettings | None = field(default=None, metadata=c.IF_GIVEN)
    """Settings of the comparison with the cloned policy; None if nothing is played."""
    needs_world: ClassVar = False
    """False for its tools; `acting` has the world of the comparison."""

    def require_possible(self) -> None:
        """Raise UsageError for a world of the comparison that cannot be played."""
        if self.acting is not None:
            require_playable(self.acting.env.benchmark, self.acting.env.options)

    @classmethod
    def of(cls, config: c.Config) -> PreferenceSettings:
        """Return the part of a configuration that preference training reads."""
        chosen = config.preference
        compares = chosen.enabled and chosen.accept != "always" and config.env.benchmark not in WORLDLESS
        return cls(
            policy=config.policy.trained(),
            phase=config.training.phase("preference"),
            preference=chosen,
            seed=config.seed,
            max_new_tokens=config.inference.max_new_tokens,
            env=_env_of_tools(config),
            acting=ActingSettings.of(config) if compares else None,
        )


def _env_of_tools(config: c.Config) -> c.EnvConfig | None:
    return config.env if config.policy.tools == "auto" else None


P = TypeVar("P", BCSettings, PreferenceSettings)


def run_bc(cfg: BCSettings, work: Work) -> None:
    """Clone the successful training episodes, measure on calibration ones, and measure readiness for paid stages."""
    from r2v.evaluation.acting.readiness import readiness_of

    report = _trained(cfg, work, _clone, "bc_report.json")
    if cfg.acting is not None:
        readiness = readiness_of(cfg.acting, work, report)
        work.summary.update(readiness=readiness.summary())
        logger.log(logging.WARNING if readiness.cause else logging.INFO, "  bc: readiness=%s", readiness)
    work.summary.update(
        _figures(report, "n_episodes", "n_steps", "train_match", "held_out_match", "weights_sha256"),
        final_loss=report["losses"][-1]["loss"],
    )


def run_preference(cfg: PreferenceSettings, work: Work) -> None:
    """Train bc's weights on pairs and publish them if executed success is higher; else, and without pairs, bc's."""
    reason = _nothing_to_learn(cfg, work)
    if reason is not None:
        logger.warning("  preference training skipped, the cloned policy is published: reason=%s", reason)
        hand_on(work)
        work.summary.update(enabled=cfg.preference.enabled, n_pairs=0)
        return
    report = _trained(cfg, work, _prefer, "dpo_report.json")
    work.summary.update(_figures(report, "n_pairs", "n_tasks", "reward_margin", "before", "after", "warnings"))
    work.summary.update(weights_sha256=report["weights_sha256"])
    if cfg.acting is not None:
        accept_or_hand_on(cfg.preference, cfg.acting, work)


def _nothing_to_learn(cfg: PreferenceSettings, work: Work) -> str | None:
    """Return the reason that nothing is trained, or None."""
    if not cfg.preference.enabled:
        return "preference.enabled=false"
    pairs = work.inputs["candidates"].file("preference_pairs.jsonl")
    return None if pairs.stat().st_size else "there are no preference pairs"


def _trained(cfg: P, work: Work, train: Callable[[P, Work], dict[str, Any]], report: str) -> dict[str, Any]:
    """Train here or, with several GPUs, in a rank for each; return the report."""
    phase, ranks = cfg.phase, distributed.ranks_for(cfg.phase.ranks, cfg.policy.device)
    sharded = training_is_sharded(phase, cfg.policy, ranks)
    distributed.cut(phase.batch_size, phase.gradient_accumulation_steps, ranks)
    if ranks == 1 and not sharded and not distributed.crowded(cfg.policy.device):
        return train(cfg, work)
    distributed.launch(ranks, "-m", "r2v.stages.train_policy", str(work.folder))
    recorded: dict[str, Any] = json.loads((work.folder / report).read_text())
    return recorded


def _clone(cfg: BCSettings, work: Work) -> dict[str, Any]:
    from r2v.data.store import StoredEpisodes
    from r2v.policy.load import load_policy
    from r2v.policy.training.bc import train_bc

    path = work.inputs["perturb"].file("trajectories.jsonl")
    left_out = _left_out(cfg, path)
    held_out = StoredEpisodes(path, keep=lambda episode: _measured_on(episode, left_out))
    cloned = StoredEpisodes(path, keep=lambda episode: not _measured_on(episode, left_out))
    if distributed.rank() == 0:
        write_json(work.folder / TASKS, sorted({episode.metadata.task_id for episode in cloned}))
    tools = _tools(cfg, work.inputs["perturb"])
    if distributed.rank() == 0 and cfg.env is not None:
        write_tools(work.folder / TOOLS_FILE, tools)
    loaded = load_policy(cfg.policy, for_training=True, sharded=cfg.phase.fsdp, seed=cfg.seed)
    return train_bc(
        cloned,
        loaded,
        _encoder(cfg, loaded, tools),
        cfg.phase,
        work.folder,
        seed=cfg.seed,
        held_out=held_out,
        replaced=bool(cfg.replaced),
    )


def _left_out(cfg: BCSettings, path: Path) -> frozenset[str]:
    """Return the tasks held out for an imputed router."""
    from r2v.data.store import StoredEpisodes
    from r2v.rollout.stage_rollouts.teacher_states import left_out_tasks

    if cfg.held_out_tasks is None:
        return frozenset()
    tasks = {episode.metadata.task_id for episode in StoredEpisodes(path)}
    return left_out_tasks(tasks, cfg.held_out_tasks)


def _measured_on(episode: Episode, left_out: frozenset[str]) -> bool:
    return episode.metadata.split == "calibration" or episode.metadata.task_id in left_out


def _prefer(cfg: PreferenceSettings, work: Work) -> dict[str, Any]:
    from r2v.policy.load import load_policy
    from r2v.policy.training.preference import read_pairs, train_preference

    loaded = load_policy(cfg.policy, work.inputs["bc"].file("final"), for_training=True, sharded=cfg.phase.fsdp)
    encoder = _encoder(cfg, loaded, _tools(cfg, work.inputs["bc"]))
    pairs = read_pairs(work.inputs["candidates"].file("preference_pairs.jsonl"))
    return train_preference(pairs, loaded, encoder, cfg.phase, cfg.preference, work.folder, seed=cfg.seed)


def _train_as_rank(folder: Path) -> None:
    """Train the attempt in a folder as one of the ranks, by its recorded configuration and inputs."""
    job, config, work = attempt_of_rank(folder)
    distributed.join(config.policy.device)
    if job == "bc":
        _clone(BCSettings.of(config), work)
    else:
        _prefer(PreferenceSettings.of(config), work)


def _tools(cfg: BCSettings | PreferenceSettings, source: Artifact) -> Tools:
    """Return the tools in the policy's prompts: those of an input, or a fresh world's if it has none."""
    from r2v.policy.training_tools import of_fresh_world

    if cfg.env is None:
        return ()
    return read_tools(source.file(TOOLS_FILE)) if TOOLS_FILE in source.files else of_fresh_world(cfg.env)


def _encoder(cfg: BCSettings | PreferenceSettings, loaded: Loaded, tools: Tools) -> Encoder:
    from r2v.policy.prompt_encoder import Encoder
    from r2v.policy.training_tools import tool_specs

    return Encoder.of(loaded.tokenizer, cfg.policy, cfg.max_new_tokens, tool_specs(tools))


def _figures(report: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: report[name] for name in names}


def training_is_sharded(phase: c.Phase, policy: c.PolicyConfig, ranks: int) -> bool:
    """True if ranks divide weights or optimizer states. Raise UsageError, before loading, where that cannot be."""
    if phase.fsdp:
        if ranks < 2 or not distributed.crowded(policy.device):
            # elsewhere accelerate would silently train whole weights on each rank
            raise UsageError(
                "training.fsdp=true: fewer than two GPUs are used here (policy.device, training.ranks), and only GPUs "
                "shard; set training.fsdp=false, or training.zero=2 or 3, which DeepSpeed does on a CPU too"
            )
        return True
    if not phase.zero and phase.deepspeed is None:
        return False
    setting = f"training.deepspeed={phase.deepspeed}" if phase.deepspeed else f"training.zero={phase.zero}"
    distributed.require_deepspeed(setting, policy.device)
    if phase.deepspeed and not Path(phase.deepspeed).is_file():
        raise UsageError(f"{setting}: no such file")
    if phase.zero == 3 and policy.in_4bit:
        raise UsageError(
            f"{setting}: 4-bit weights cannot be sharded; set training.zero=2 or policy.load_in_4bit=false"
        )
    return True


BC = Stage(version=1, settings=BCSettings, run=run_bc)
PREFERENCE = Stage(version=3, settings=PreferenceSettings, run=run_preference)


if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: _train_as_rank(Path(sys.argv[1]))))
