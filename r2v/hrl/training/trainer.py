"""Training loop: iterations of named phases, after each of which a stopped run can resume.

    rollout     play episodes: answers, hints, better answers (all ranks, each its share)
    insert      add their transitions to the replay buffer
    critic      update the critic, and its target network after each step; a warm-up iteration ends here
    advantages  compute advantages and reference log-probabilities: training batches of both policies
    actor       update the actor
    guidance    update the guidance and its value model
    finish      advance versions, evaluate at intervals, write a line of metrics

Without a critic (advantage=score, rloo, grpo) there is no insert, no critic and no warm-up. In the placement `split`,
with separate GPUs for actor and guidance, both are trained concurrently. Held-out problems are evaluated greedily with
one hint, without draws. A run is a function of configuration and seed: every draw is keyed by (seed, iteration,
problem, turn, hint, role).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from r2v import distributed
from r2v.config import HierarchicalConfig, RolloutConfig, identity
from r2v.errors import Interrupted, UsageError
from r2v.hrl.algorithm.compute_advantages import check
from r2v.hrl.models.roles import Roles, SavedRole
from r2v.hrl.parallel.base_model import BaseModel
from r2v.hrl.parallel.micro_batch import CPU_MICRO_BATCH, MicroBatchSizes
from r2v.hrl.parallel.sharded_tensors import TakeFn, contribute, full_cpu_copy, own_part
from r2v.hrl.rollout.episode import GuidedEpisode, PlayedChecker, Prompts, gather_episodes, play_many
from r2v.hrl.rollout.transitions import transitions_of
from r2v.hrl.tasks.checkers import Checker
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.training import alarms, checkpoint, metrics
from r2v.hrl.training.critic_trainer import CriticTrainer
from r2v.hrl.training.policies import Policies
from r2v.hrl.training.state import TRAINING_PHASES, TrainingState, hash_of
from r2v.hrl.training.tracking import Tracking, timed
from r2v.log import curve, logger
from r2v.memory.planner.planner import Plan
from r2v.progress import Progress
from r2v.randomness import generator
from r2v.storage.checkpoint import LATEST, resuming

KEPT_CONVERSATIONS = 5
"""Number of held-out conversations of each evaluation in the report."""

TRAINED: tuple[SavedRole, ...] = ("actor", "guidance", "critic", "value", "target")
"""Roles with weights in a checkpoint."""


class Trainer:
    """Trainer of `roles`, in place, on `problems`; `run` resumes from the latest checkpoint in `folder`.

    `stop` is called after every phase, on all ranks alike. `plan`: memory plan of `micro_batch_sizes`. `prompt_tokens`:
    limit on a prompt. `provenance`: further values that a checkpoint must match. Raises UsageError for settings that
    exclude each other, or too few problems.
    """

    def __init__(
        self,
        *,
        roles: Roles,
        problems: Sequence[Problem],
        held_out: Sequence[Problem],
        prompter: Prompts,
        checker: Checker | PlayedChecker,
        h: HierarchicalConfig,
        seed: int,
        folder: Path,
        stop: Callable[[], bool] = lambda: False,
        micro_batch_sizes: MicroBatchSizes | None = None,
        plan: Plan | None = None,
        prompt_tokens: int = 640,
        provenance: Mapping[str, Any] | None = None,
        rollout: RolloutConfig | None = None,
    ) -> None:
        check(h)
        if h.episodes > len(problems):
            raise UsageError(
                f"hierarchical.episodes={h.episodes}: there are {len(problems)} problems to train on; set "
                "as many or fewer, or give more problems"
            )
        self.roles, self.problems, self.held_out = roles, list(problems), list(held_out)
        self.prompter, self.checker, self.rollout = prompter, checker, rollout
        self.h, self.seed, self.folder, self.stop = h, seed, folder, stop
        sizes, self.prompt_tokens = micro_batch_sizes or MicroBatchSizes(smallest=CPU_MICRO_BATCH), prompt_tokens
        self.rows = sizes.rollout_rows(rollout or RolloutConfig())
        self.critic_trainer = (
            CriticTrainer(roles, h, seed, sizes.of("critic"), prompt_tokens, self.rows) if h.has_critic else None
        )
        self.policies = Policies(roles, h, sizes)
        self.tracking = Tracking(set(vars(roles.devices).values()), plan, sizes)
        self.state, self.metrics_file, self._shown = TrainingState(), metrics.MetricsFile(folder), dict[str, float]()
        self.identity = {
            "hierarchical": identity(h),
            "seed": seed,
            "placement": roles.placement,
            "problems": hash_of([[problem.id, problem.text, problem.answer] for problem in (*problems, *held_out)]),
            **(provenance or {}),
        }
        self._phases: dict[str, Callable[[], None]] = {
            "rollout": self._rollout,
            "insert": self._insert,
            "critic": self._critic,
            "advantages": self._compute_advantages,
            "actor": self._actor,
            "guidance": self._guidance,
            "finish": self._finish,
        }

    def run(self) -> dict[str, Any]:
        """Train to the end and return a report: accuracy on the held-out problems before and after, the number of
        iterations, and a hash of all trained weights. Raises Interrupted, with a checkpoint written, when stopped."""
        self.resume()
        total = self.h.iterations
        with Progress("" if distributed.rank() else "hierarchical", total, self.state.iteration) as bar:
            if self.state.untrained is None:
                self.state.untrained = self._evaluate(0)
            while not self._over:
                before = self.state.iteration
                self._do(self.state.phase)
                done = self.state.iteration > before
                if done:
                    bar.advance(1, **self._shown)
                stopping, over = self.stop(), self._over
                if stopping or over or (done and self.state.iteration % self.h.save_every == 0):
                    self._save()
                if stopping and not over:
                    state = self.state
                    raise Interrupted(
                        f"hierarchical: stopped in iteration {state.iteration + 1} of {total} before its "
                        f"{state.phase}, which {self.folder / LATEST} holds; the same command continues"
                    )
        base, _ = self.roles.language_models["actor"]
        if not isinstance(base, BaseModel):
            base.gather()  # collective, so that rank 0 can export the actor alone
        return self.report()

    @property
    def _over(self) -> bool:
        return self.state.iteration >= self.h.iterations or self.state.best.over(self.h.patience)

    def report(self) -> dict[str, Any]:
        """Return the report of `run`."""
        state = self.state
        return {
            "best": state.best.report(),
            "samples": state.samples,
            "iterations": state.iteration,
            "untrained": state.untrained,
            "trained": state.trained,
            "trained_sha256": hash_of({role: self.roles.state(role) for role in TRAINED}),
        }

    def _do(self, phase: str) -> None:
        began = time.monotonic()
        with self.tracking.phase(phase, metrics.longest(self.state.episodes)):
            self._phases[phase]()
        self.state.metrics[f"seconds/{phase}"] = time.monotonic() - began
        self.state.metrics |= self.tracking.figures(phase)
        if phase == "finish":
            self._write()
            self.state.next_iteration()
        else:
            self.state.phase = self._after(phase)

    def _after(self, phase: str) -> str:
        if phase == "rollout" and self.critic_trainer is None:
            return "advantages"
        if phase == "critic" and self._warming_up:
            return "finish"
        if phase == "actor" and (self._concurrent or not self.h.guidance.enabled):
            return "finish"
        return TRAINING_PHASES[TRAINING_PHASES.index(phase) + 1]

    @property
    def _warming_up(self) -> bool:
        return self.critic_trainer is not None and self.state.iteration < self.h.critic.warmup

    @property
    def _concurrent(self) -> bool:
        return self.roles.placement == "split" and self.h.guidance.enabled and distributed.ranks() == 1

    def _rollout(self) -> None:
        count, iteration = len(self.problems), self.state.iteration
        chosen = generator(self.seed, "problems", iteration).sample(range(count), self.h.episodes)
        began = time.monotonic()
        self.state.episodes = gather_episodes(
            self._play([self.problems[i] for i in chosen], iteration, group=self.h.group)
        )
        self.state.metrics |= metrics.of_episodes(self.state.episodes)
        generated = metrics.tokens(self.state.episodes)
        self.state.metrics["rollout/tokens"] = generated
        self.state.metrics["rollout/tokens_per_s"] = generated / (time.monotonic() - began)

    def _play(
        self,
        problems: Sequence[Problem],
        *key: str | int,
        temperature: float = 1.0,
        hints: int | None = None,
        group: int = 1,
    ) -> list[GuidedEpisode]:
        with self.roles.gathered("actor", *(("guidance",) if self.h.guidance.enabled else ())):
            return play_many(
                problems,
                roles=self.roles,
                prompter=self.prompter,
                checker=self.checker,
                h=self.h,
                key=(self.seed, *key),
                temperature=temperature,
                hints=hints,
                rollout=self.rollout,
                group=group,
                prompt_tokens=self.prompt_tokens,
                rows=self.rows,
                versions={"actor": self.state.actor, "guidance": self.state.guidance},
            )

    def _insert(self) -> None:
        assert self.critic_trainer is not None
        transitions = transitions_of(self.state.episodes, self.h.rewards, self.state.guidance)
        rows = self.critic_trainer.insert(transitions)
        self.state.metrics["critic/td_held_out"] = self.critic_trainer.td_error(rows)

    def _critic(self) -> None:
        assert self.critic_trainer is not None
        with self.roles.gathered(*(("actor",) if self.h.critic.draws else ())):
            self.state.metrics |= self.critic_trainer.train(self.state.iteration, self.state.actor, self.state.guidance)

    def _compute_advantages(self) -> None:
        with self.roles.gathered("reference", *(("actor",) if self.h.token_baseline else ())):
            self.state.batches, measured = self.policies.training_batches(self.state.episodes, self.critic_trainer)
        self.state.metrics |= measured

    def _actor(self) -> None:
        self._set_rate()
        if not self._concurrent:
            self.state.metrics |= self.policies.update_actor(self.state.episodes, self.state.batches)
            return
        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            updates = [
                pool.submit(timed, update, self.state.episodes, self.state.batches)
                for update in (self.policies.update_actor, self.policies.update_guidance)
            ]
        sequential = 0.0
        for measured, seconds in (update.result() for update in updates):
            self.state.metrics |= measured
            sequential += seconds
        self.state.metrics["overlap/ratio"] = sequential / (time.monotonic() - began)

    def _set_rate(self) -> None:
        share = rate_share(self.h, self.state.iteration)
        self.policies.set_rate(share)
        self.state.metrics["actor/lr"] = self.h.lr * share

    def _guidance(self) -> None:
        self._set_rate()
        self.state.metrics |= self.policies.update_guidance(self.state.episodes, self.state.batches)

    def _finish(self) -> None:
        state = self.state
        if not self._warming_up:
            state.actor += self.h.updates
            state.guidance += self.h.updates if self.h.guidance.enabled else 0
        number = state.iteration + 1
        if number % self.h.evaluate_every == 0 or number == self.h.iterations:
            state.trained = self._evaluate(number)
            state.metrics |= metrics.of_accuracy(state.trained, "held_out/")
            first = distributed.rank() == 0
            if state.best.note(number, state.trained["accuracy"][-1]) and (first or self.roles.sharded):
                state.best.weights = self.roles.state("actor", full_cpu_copy if first else contribute)
            if first and state.best.over(self.h.patience) and number < self.h.iterations:
                logger.info("  training stopped early: iteration=%d best_iteration=%d", number, state.best.iteration)
        state.watch()
        for name, text in alarms.raised(self.h, state.iteration, state.metrics, state.history):
            if name not in state.alarms:
                state.alarms.append(name)
                if distributed.rank() == 0:
                    logger.warning("  training alarm: iteration=%d alarm=%s reason=%s", number, name, text)

    def _evaluate(self, number: int) -> dict[str, Any]:
        """Return the accuracy on the held-out problems, decoded greedily, after `number` iterations; keep some
        samples."""
        episodes = gather_episodes(self._play(self.held_out, "held_out", temperature=0.0, hints=1))
        self.state.samples[str(number)] = metrics.conversations(episodes[:KEPT_CONVERSATIONS])
        return metrics.accuracy(episodes)

    def _write(self) -> None:
        state = self.state
        if distributed.rank() == 0:
            versions = {"actor/version": state.actor, "guidance/version": state.guidance}
            line = {"iteration": state.iteration, **versions, **state.metrics}
            self.metrics_file.append(line)
            curve(line)
        last = f"acc/turn{self.h.turns}"
        self._shown = {
            name: round(state.metrics[name], 4)
            for name in ("acc/turn1", last, "actor/loss", "critic/loss")
            if name in state.metrics
        }

    def _save(self) -> None:
        """Write a checkpoint: rank 0 whole models, or each rank its part if FSDP shards them. The other ranks wait, so
        that none resumes from half of one."""
        first, state, in_parts = distributed.rank() == 0, self.state, self.roles.in_parts
        learned: dict[str, Any] = {}
        if in_parts:
            if first:
                checkpoint.begin(self.folder, state.number)
            distributed.wait_for_all()
            checkpoint.write_part(self.folder, state.number, self._learned(own_part))
            distributed.wait_for_all()
        elif first or self.roles.sharded:
            learned = self._learned(full_cpu_copy if first else contribute)
        if first:
            replay_folder, critic_trainer = self.folder / "replay", self.critic_trainer
            saved = {"state": state.plain(), **learned, "lines": self.metrics_file.length}
            if critic_trainer is not None:
                replay_folder.mkdir(parents=True, exist_ok=True)
                saved |= {
                    "critic": critic_trainer.network.optimizer.state_dict(),
                    "replay": critic_trainer.replay_buffer.save(replay_folder),
                }
            position = {"iteration": state.iteration, "phase": state.phase, "replay": saved.get("replay", 0)}
            needed = critic_trainer.replay_buffer.segments(replay_folder) if critic_trainer else ()
            checkpoint.write(self.folder, state.number, self.identity, position, saved, needed, begun=in_parts)
            if critic_trainer is not None:
                critic_trainer.replay_buffer.forget(replay_folder, checkpoint.oldest(self.folder, "replay"))
        distributed.wait_for_all()

    def _learned(self, take: TakeFn) -> dict[str, Any]:
        """Return all trained weights and optimizers, each tensor converted by `take`."""
        return {
            "trained": {role: self.roles.state(role, take) for role in TRAINED},
            "policies": self.policies.plain(take),
        }

    def resume(self) -> None:
        """Resume from the latest checkpoint, if there is one, and drop later lines of metrics."""
        saved = checkpoint.read(self.folder, self.identity)
        if saved is not None:
            with resuming((self.folder / LATEST).resolve()):
                self._restore(saved)
        if distributed.rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.metrics_file.truncate(saved["lines"] if saved is not None else 0)
        distributed.wait_for_all()

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.state = TrainingState.of(saved["state"])
        for role, state in saved["trained"].items():
            self.roles.load(role, state)
        self.policies.load(saved["policies"])
        if self.critic_trainer is not None:
            self.critic_trainer.network.optimizer.load_state_dict(saved["critic"])
            self.critic_trainer.replay_buffer.load(self.folder / "replay", saved["replay"])


def rate_share(h: HierarchicalConfig, iteration: int) -> float:
    """Return the share in (0, 1] of both policies' learning rates in an iteration, counted from 0. It is a function of
    the iteration alone, so that a resumed run needs no state.

    The critic's warm-up does not count. The share rises linearly over `lr_warmup` iterations, (n + 1) / (lr_warmup + 1)
    in the n-th, to 1; then it is constant, or falls until the last iteration to just above 0.
    """
    first = h.critic.warmup if h.has_critic else 0
    done, whole = iteration - first, h.iterations - first
    if done < h.lr_warmup:
        return max(done + 1, 1) / (h.lr_warmup + 1)
    if h.lr_schedule == "constant":
        return 1.0
    left = 1 - (done - h.lr_warmup) / max(1, whole - h.lr_warmup)
    return left if h.lr_schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
