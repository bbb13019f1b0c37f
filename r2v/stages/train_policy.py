"""Stages 3a and 5, train_policy: behaviour cloning of the teacher (bc), then preference optimisation (preference).

    r2v train_policy --stage bc           # perturbed trajectories -> final/, bc_report.json
    r2v train_policy --stage preference   # bc's weights and candidate pairs -> final/, dpo_report.json

What preference training learnt replaces the cloned policy only where it succeeds more often on calibration tasks
(`preference.accept`): else the clone is what it publishes, and manifest, log and report say so.

Both leave checkpoint-* and checkpoint-latest; a killed run goes on from there to the same weights. Where there is
more than one GPU (or `training.ranks`), the training alone is done by one process for each: this module, given the
attempt's folder. The command that runs the stage stays as it is, with its lease and its manifest.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from r2v import config as c
from r2v import distributed
from r2v.data.tools import TOOLS_FILE, Tools, read_tools, write_tools
from r2v.envs.base import WORLDLESS, require_playable
from r2v.errors import UsageError
from r2v.evaluation.acting.acting_settings import ActingSettings
from r2v.log import logger
from r2v.stages import Stage
from r2v.stages.accept_policy import accept_or_hand_on, hand_on
from r2v.storage.artifact import Work, attempt_of
from r2v.storage.files import write_json
from r2v.storage.integrity import Artifact

if TYPE_CHECKING:
    from r2v.data.episode import Episode
    from r2v.policy.load import Loaded
    from r2v.policy.prompt_encoder import Encoder

TASKS = "tasks.json"
"""The ids of the tasks that a cloned policy has learnt from."""


@dataclass(frozen=True, kw_only=True)
class BCSettings:
    """What a cloned policy depends on."""

    policy: c.PolicyConfig
    phase: c.Phase
    max_new_tokens: int
    seed: int
    env: c.EnvConfig | None = field(default=None, metadata=c.IF_GIVEN)
    """Whose tools the policy is told; None: it is told none."""
    held_out_tasks: float | None = field(default=None, metadata=c.IF_GIVEN)
    """The share of tasks that are left to an imputed router, and measured on; None: every task is cloned."""
    prompt: int | None = field(default=None, metadata=c.IF_GIVEN)
    """`PolicyConfig.prompt_version`."""
    replaced: bool | None = field(default=None, metadata=c.IF_GIVEN)
    """Whether episodes whose observations were replaced are cloned too; None: they are refused."""
    acting: ActingSettings | None = field(default=None, metadata=c.RUNTIME)
    """How its readiness is measured, which changes nothing of what is cloned; None: there is no world."""
    needs_world: ClassVar = False
    """The tools were recorded with the data; only data of an earlier R2V, which has none, asks a fresh world."""

    def require_possible(self) -> None:
        """Raises UsageError for weights that cannot be trained, or not by this optimizer."""
        self.policy.require_trainable()
        self.phase.require_optimizer()

    @classmethod
    def of(cls, config: c.Config) -> BCSettings:
        """The parts of the whole configuration that are read here."""
        return cls(
            policy=config.policy.trained(),
            phase=config.training.phase("bc"),
            seed=config.seed,
            max_new_tokens=config.inference.max_new_tokens,
            env=_env_told(config),
            prompt=config.policy.prompt_version,
            held_out_tasks=config.router.left_out_of_cloning,
            replaced=True if "replace" in config.perturb.constructions else None,
            acting=None if config.env.benchmark in WORLDLESS else ActingSettings.of(config),
        )


@dataclass(frozen=True, kw_only=True)
class PreferenceSettings:
    """What a preference-trained policy depends on."""

    policy: c.PolicyConfig
    phase: c.Phase
    preference: c.PreferenceConfig
    max_new_tokens: int
    seed: int
    env: c.EnvConfig | None = field(default=None, metadata=c.IF_GIVEN)
    """As of `BCSettings`."""
    acting: ActingSettings | None = field(default=None, metadata=c.IF_GIVEN)
    """How the trained policy is compared with the cloned one; None: nothing is played."""
    needs_world: ClassVar = False
    """For its tools; the world that is played in is asked of `acting`."""

    def require_possible(self) -> None:
        """Raises UsageError for weights that cannot be trained, or not by this optimizer, or a world that cannot be
        played in."""
        self.policy.require_trainable()
        self.phase.require_optimizer()
        if self.acting is not None:
            require_playable(self.acting.env.benchmark, self.acting.env.options)

    @classmethod
    def of(cls, config: c.Config) -> PreferenceSettings:
        """The parts of the whole configuration that are read here."""
        return cls(
            policy=config.policy.trained(),
            phase=config.training.phase("preference"),
            preference=config.preference,
            seed=config.seed,
            max_new_tokens=config.inference.max_new_tokens,
            env=_env_told(config),
            acting=ActingSettings.of(config) if _compares(config) else None,
        )


def _compares(config: c.Config) -> bool:
    chosen = config.preference
    return chosen.enabled and chosen.accept != "always" and config.env.benchmark not in WORLDLESS


def _env_told(config: c.Config) -> c.EnvConfig | None:
    return config.env if config.policy.tools == "auto" else None


P = TypeVar("P", BCSettings, PreferenceSettings)


def run_bc(cfg: BCSettings, work: Work) -> None:
    """Clone the successful training episodes; calibration episodes, where there are any, are measured on. Then look
    whether what comes after is worth it."""
    from r2v.evaluation.acting.readiness import readiness_of

    report = _trained(cfg, work, _clone, "bc_report.json")
    if cfg.acting is not None:
        found = readiness_of(cfg.acting, work, report)
        work.summary.update(readiness=found.summary())
        logger.log(logging.WARNING if found.cause else logging.INFO, "  bc: %s", found)
    work.summary.update(
        _figures(report, "n_episodes", "n_steps", "train_match", "held_out_match", "weights_sha256"),
        final_loss=report["losses"][-1]["loss"],
    )


def run_preference(cfg: PreferenceSettings, work: Work) -> None:
    """Improve bc's weights by what the candidates came to, and publish them where executed success speaks for them;
    else, and where there is nothing to learn, hand bc's on."""
    reason = _nothing_to_learn(cfg, work)
    if reason is not None:
        logger.warning("  preference: %s; the cloned policy is handed on as it is", reason)
        hand_on(work)
        work.summary.update(enabled=cfg.preference.enabled, n_pairs=0)
        return
    report = _trained(cfg, work, _prefer, "dpo_report.json")
    work.summary.update(_figures(report, "n_pairs", "n_tasks", "reward_margin", "before", "after", "warnings"))
    work.summary.update(weights_sha256=report["weights_sha256"])
    if cfg.acting is not None:
        accept_or_hand_on(cfg.preference, cfg.acting, work)


def _nothing_to_learn(cfg: PreferenceSettings, work: Work) -> str | None:
    """Why nothing is trained, if nothing is."""
    if not cfg.preference.enabled:
        return "preference.enabled=false"
    pairs = work.inputs["candidates"].file("preference_pairs.jsonl")
    return None if pairs.stat().st_size else "there are no preference pairs"


def _trained(cfg: P, work: Work, train: Callable[[P, Work], dict[str, Any]], report: str) -> dict[str, Any]:
    """The report of the training, done here or, where there are several GPUs, by one rank for each."""
    phase, ranks = cfg.phase, distributed.ranks_for(cfg.phase.ranks, cfg.policy.device)
    sharded = training_is_sharded(phase, cfg.policy, ranks)
    distributed.cut(phase.batch_size, phase.gradient_accumulation_steps, ranks)
    if ranks == 1 and not sharded and not distributed.crowded(cfg.policy.device):
        return train(cfg, work)
    distributed.launch(ranks, "-m", "r2v.stages.train_policy", str(work.folder))
    made: dict[str, Any] = json.loads((work.folder / report).read_text())
    return made


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
    """The tasks that are left to an imputed router."""
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
    """Train the attempt in a folder as one of the ranks: everything it takes lies there."""
    job, inputs = attempt_of(folder)
    config = c.load(folder / "config.yaml")
    device = distributed.own_device(config.policy.device)
    distributed.join(device)
    config = replace(config, policy=replace(config.policy, device=device))
    work = Work(folder=folder, fingerprint="", inputs=inputs, root=Path())
    if job == "bc":
        _clone(BCSettings.of(config), work)
    else:
        _prefer(PreferenceSettings.of(config), work)


def _tools(cfg: BCSettings | PreferenceSettings, source: Artifact) -> Tools:
    """What the policy is told: the tools that an input holds, or a fresh world's where it holds none."""
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
    """Whether ranks divide more than the batch. Raises UsageError, before anything is loaded, where that cannot be
    had."""
    if phase.fsdp:
        if ranks < 2 or not distributed.crowded(policy.device):
            # accelerate would train whole weights on each rank elsewhere, without a word
            raise UsageError(
                "training.fsdp=true: fewer than two GPUs are used here (policy.device, training.ranks), and only GPUs "
                "shard; set training.fsdp=false, or training.zero=2 or 3, which DeepSpeed does on a CPU too"
            )
        return True
    if not phase.zero and phase.deepspeed is None:
        return False
    asked = f"training.deepspeed={phase.deepspeed}" if phase.deepspeed else f"training.zero={phase.zero}"
    distributed.require_deepspeed(asked, policy.device)
    if phase.deepspeed and not Path(phase.deepspeed).is_file():
        raise UsageError(f"{asked}: no such file")
    if phase.zero == 3 and policy.in_4bit:
        raise UsageError(f"{asked}: 4-bit weights cannot be sharded; set training.zero=2 or policy.load_in_4bit=false")
    return True


BC = Stage(version=1, settings=BCSettings, run=run_bc)
PREFERENCE = Stage(version=3, settings=PreferenceSettings, run=run_preference)


if __name__ == "__main__":
    sys.exit(distributed.run_rank(lambda: _train_as_rank(Path(sys.argv[1]))))
