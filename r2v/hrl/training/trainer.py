"""Hierarchical training: iterations of named phases, each of which a run that was cut can go on from.

    rollout   problems are played: answers, hints, better answers (all ranks, each its share)
    insert    the critic remembers them
    critic    updates, its slow copy after each; in the warm-up an iteration ends here
    freeze    advantages and reference log-probabilities: what the policies learn, before anything moves
    actor     its updates
    guidance  its updates, and those of what it expects
    finish    versions, a measurement now and then, a line of metrics

Without a critic (advantage=score) there is no insert, no critic and no warm-up. In `split`, where actor and guidance
have GPUs of their own, they learn side by side. Held-out problems are measured greedily, on both sides: one hint, no
draws, so that a measurement has no luck in it. What happens is a function of configuration and seed: every draw is
keyed by (seed, iteration, problem, turn, hint, role).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from r2v import distributed
from r2v.config import HierarchicalConfig, RolloutConfig, identity
from r2v.errors import Interrupted, UsageError
from r2v.hrl.algorithm.compute_advantages import check
from r2v.hrl.models.bases import Base
from r2v.hrl.models.roles import Roles
from r2v.hrl.rollout.episode import Episode, Prompts, gathered, play_many
from r2v.hrl.rollout.transitions import transitions_of
from r2v.hrl.tasks.checkers import Checker
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.training import checkpoint, metrics
from r2v.hrl.training.critic_trainer import Judge
from r2v.hrl.training.policies import Policies
from r2v.hrl.training.state import PHASES, State, hash_of
from r2v.hrl.training.tracking import Tracking
from r2v.log import Progress, logger
from r2v.memory.planner.planner import Plan
from r2v.policy.fit import LATEST
from r2v.randomness import generator


class Trainer:
    """Trains `roles` in place on `problems`; `run` goes on from the latest checkpoint in `folder`.

    `stop` is asked after every phase, by all ranks alike. `micro` are rows at a time, `plan` what was planned of them,
    `prompt_tokens` the longest prompt; `made_of` adds to what a checkpoint must have been made with.
    """

    def __init__(
        self,
        *,
        roles: Roles,
        problems: Sequence[Problem],
        held_out: Sequence[Problem],
        prompter: Prompts,
        checker: Checker,
        h: HierarchicalConfig,
        seed: int,
        folder: Path,
        stop: Callable[[], bool] = lambda: False,
        micro: int = 32,
        plan: Plan | None = None,
        prompt_tokens: int = 640,
        made_of: Mapping[str, Any] | None = None,
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
        self.judge = None if h.advantage == "score" else Judge(roles, h, seed, micro, prompt_tokens)
        self.policies = Policies(roles, h, micro)
        self.tracking = Tracking(set(vars(roles.devices).values()), plan, micro)
        self.state, self.lines, self._shown = State(), metrics.Lines(folder), dict[str, float]()
        self.identity = {
            "hierarchical": identity(h),
            "seed": seed,
            "placement": roles.placement,
            "problems": hash_of([[one.id, one.text, one.answer] for one in (*problems, *held_out)]),
            **(made_of or {}),
        }
        self._phases: dict[str, Callable[[], None]] = {
            "rollout": self._rollout,
            "insert": self._insert,
            "critic": self._critic,
            "freeze": self._freeze,
            "actor": self._actor,
            "guidance": self._guidance,
            "finish": self._finish,
        }

    def run(self) -> dict[str, Any]:
        """Train to the end; the report: what the held-out problems came to before and after, how many iterations
        there were, and a hash of all that was trained. Raises Interrupted, a checkpoint written, when told to stop."""
        self._take_up()
        total = self.h.iterations
        with Progress("" if distributed.rank() else "hierarchical", total, self.state.iteration) as bar:
            if self.state.untrained is None:
                self.state.untrained = self._measured()
            while self.state.iteration < total:
                before = self.state.iteration
                self._do(self.state.phase)
                done = self.state.iteration > before
                if done:
                    bar.advance(1, **self._shown)
                asked, over = self.stop(), self.state.iteration == total
                if asked or over or (done and self.state.iteration % self.h.save_every == 0):
                    self._save()
                if asked and not over:
                    state = self.state
                    raise Interrupted(
                        f"hierarchical: stopped in iteration {state.iteration + 1} of {total} before its "
                        f"{state.phase}, which {self.folder / LATEST} holds; the same command continues"
                    )
        base, _ = self.roles.bodies["actor"]
        if not isinstance(base, Base):
            base.put_together()  # rank 0 alone hands it on
        return self.report()

    def report(self) -> dict[str, Any]:
        """What `run` returns."""
        state = self.state
        return {
            "iterations": state.iteration,
            "untrained": state.untrained,
            "trained": state.trained,
            "trained_sha256": hash_of(self._trained()),
        }

    def _do(self, phase: str) -> None:
        began = time.monotonic()
        with self.tracking.phase(phase, metrics.longest(self.state.episodes)):
            self._phases[phase]()
        self.state.figures[f"seconds/{phase}"] = time.monotonic() - began
        self.state.figures |= self.tracking.figures(phase)
        if phase == "finish":
            self._write()
            self.state.next_iteration()
        else:
            self.state.phase = self._after(phase)

    def _after(self, phase: str) -> str:
        if phase == "rollout" and self.judge is None:
            return "freeze"
        if phase == "critic" and self._warming:
            return "finish"
        if phase == "actor" and (self._side_by_side or not self.h.guidance.enabled):
            return "finish"
        return PHASES[PHASES.index(phase) + 1]

    @property
    def _warming(self) -> bool:
        return self.judge is not None and self.state.iteration < self.h.critic.warmup

    @property
    def _side_by_side(self) -> bool:
        return self.roles.placement == "split" and self.h.guidance.enabled and distributed.ranks() == 1

    def _rollout(self) -> None:
        count, iteration = len(self.problems), self.state.iteration
        chosen = generator(self.seed, "problems", iteration).sample(range(count), self.h.episodes)
        began = time.monotonic()
        self.state.episodes = gathered(self._played([self.problems[i] for i in chosen], iteration))
        self.state.figures |= metrics.of_episodes(self.state.episodes)
        made = metrics.tokens(self.state.episodes)
        self.state.figures |= {"rollout/tokens": made, "rollout/tokens_per_s": made / (time.monotonic() - began)}

    def _played(
        self, problems: Sequence[Problem], *key: str | int, temperature: float = 1.0, hints: int | None = None
    ) -> list[Episode]:
        with self.roles.together("actor", *(("guidance",) if self.h.guidance.enabled else ())):
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
                versions={"actor": self.state.actor, "guidance": self.state.guidance},
            )

    def _insert(self) -> None:
        assert self.judge is not None
        came = self.judge.remember(transitions_of(self.state.episodes, self.h.rewards, self.state.guidance))
        self.state.figures["critic/td_held_out"] = self.judge.error(came)

    def _critic(self) -> None:
        assert self.judge is not None
        with self.roles.together(*(("actor",) if self.h.critic.draws else ())):
            self.state.figures |= self.judge.study(self.state.iteration, self.state.actor, self.state.guidance)

    def _freeze(self) -> None:
        with self.roles.together("reference", *(("actor",) if self.h.token_baseline else ())):
            self.state.lessons, figures = self.policies.lessons(self.state.episodes, self.judge)
        self.state.figures |= figures

    def _actor(self) -> None:
        if not self._side_by_side:
            self.state.figures |= self.policies.teach_actor(self.state.episodes, self.state.lessons)
            return
        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(_timed, teach, self.state.episodes, self.state.lessons)
                for teach in (self.policies.teach_actor, self.policies.teach_guidance)
            ]
        alone = 0.0
        for figures, seconds in (one.result() for one in both):
            self.state.figures |= figures
            alone += seconds
        self.state.figures["overlap/ratio"] = alone / (time.monotonic() - began)

    def _guidance(self) -> None:
        self.state.figures |= self.policies.teach_guidance(self.state.episodes, self.state.lessons)

    def _finish(self) -> None:
        state = self.state
        if not self._warming:
            state.actor += self.h.updates
            state.guidance += self.h.updates if self.h.guidance.enabled else 0
        number = state.iteration + 1
        if number % self.h.evaluate_every == 0 or number == self.h.iterations:
            state.trained = self._measured()
            state.figures |= metrics.of_accuracy(state.trained, "held_out/")
        state.history.append((state.figures["reward/mean"], state.figures["reward/std"]))
        if not state.alarmed and metrics.echo_trap(state.history):
            state.alarmed = True
            if distributed.rank() == 0:
                logger.warning(
                    "  hierarchical: iteration %d: rewards vary half as much as they did and are no higher; "
                    "policies may be repeating themselves (echo trap): raise hierarchical.kl or lower "
                    "hierarchical.lr",
                    number,
                )

    def _measured(self) -> dict[str, Any]:
        """How right the held-out problems are answered, greedily."""
        return metrics.accuracy(gathered(self._played(self.held_out, "held_out", temperature=0.0, hints=1)))

    def _write(self) -> None:
        state = self.state
        if distributed.rank() == 0:
            self.lines.add(
                {
                    "iteration": state.iteration,
                    "actor/version": state.actor,
                    "guidance/version": state.guidance,
                    **state.figures,
                }
            )
        last = f"acc/turn{self.h.turns}"
        self._shown = {
            name: round(state.figures[name], 4)
            for name in ("acc/turn1", last, "actor/loss", "critic/loss")
            if name in state.figures
        }

    def _trained(self, here: bool = True) -> dict[str, Any]:
        return {role: self.roles.state(role, here) for role in ("actor", "guidance", "critic", "value", "target")}

    def _save(self) -> None:
        """One rank writes; the others wait, for a checkpoint that one of them goes on from must be whole."""
        first = distributed.rank() == 0
        if first or self.roles.in_parts:
            learned = {"trained": self._trained(first), "policies": self.policies.plain(first)}
        if first:
            memory = self.folder / "replay"
            held = {"state": self.state.plain(), **learned, "lines": self.lines.length}
            if self.judge is not None:
                memory.mkdir(parents=True, exist_ok=True)
                held |= {"critic": self.judge.network.optimizer.state_dict(), "replay": self.judge.replay.save(memory)}
            at = {"iteration": self.state.iteration, "phase": self.state.phase, "replay": held.get("replay", 0)}
            checkpoint.write(self.folder, self.state.number, self.identity, at, held)
            if self.judge is not None:
                self.judge.replay.forget(memory, checkpoint.oldest(self.folder, "replay"))
        distributed.wait_for_all()

    def _take_up(self) -> None:
        """Go on from the latest checkpoint, if there is one; what was written after it is written again."""
        held = checkpoint.read(self.folder, self.identity)
        if held is not None:
            self.state = State.of(held["state"])
            for role, state in held["trained"].items():
                self.roles.load(role, state)
            self.policies.load(held["policies"])
            if self.judge is not None:
                self.judge.network.optimizer.load_state_dict(held["critic"])
                self.judge.replay.load(self.folder / "replay", held["replay"])
        if distributed.rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lines.cut(held["lines"] if held is not None else 0)
        distributed.wait_for_all()


def _timed(act: Callable[..., dict[str, float]], *args: Any) -> tuple[dict[str, float], float]:
    began = time.monotonic()
    return act(*args), time.monotonic() - began
