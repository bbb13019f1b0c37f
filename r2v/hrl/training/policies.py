"""The actor and its guidance as learners: lessons frozen for both, then updates of each by its own optimizer.

No gradient of one reaches the other: their weights are disjoint, a shared base is frozen, and what either learns was
fixed before the other moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from r2v.config import HierarchicalConfig
from r2v.hrl.algorithm import compute_advantages
from r2v.hrl.algorithm.critic import Values
from r2v.hrl.algorithm.training_batch import COUNTED, Lesson, TokenBaseline, in_length, logprobs_of, policy_part
from r2v.hrl.models.encoders import text_of
from r2v.hrl.models.roles import Roles, Speaking
from r2v.hrl.parallel import ranks
from r2v.hrl.rollout.episode import Episode, gathered
from r2v.hrl.rollout.transitions import Answers, answers_of, hints_of
from r2v.hrl.training import metrics
from r2v.hrl.training.optimizer_step import Network, Stepped, update
from r2v.memory.retry_on_oom import retry_on_oom

if TYPE_CHECKING:
    from r2v.hrl.rollout.generator import Segment
    from r2v.hrl.training.critic_trainer import Judge


class Policies:
    """The learners of `roles`, `micro` rows at a time."""

    def __init__(self, roles: Roles, h: HierarchicalConfig, micro: int) -> None:
        self.roles, self.h, self.micro = roles, h, micro
        self.networks = {"actor": self._network("actor", h.lr, "hierarchical.lr")}
        if h.guidance.enabled:
            self.networks["guidance"] = self._network("guidance", h.guidance_lr, "hierarchical.guidance_lr")
        if roles.value is not None:
            self.networks["value"] = self._network("value", h.critic.lr, "hierarchical.critic.lr")
        self.baseline: TokenBaseline | None = None
        if h.token_baseline:
            with roles.using("actor") as model:
                self.baseline = TokenBaseline(model.config.hidden_size, next(iter(model.parameters())))
            self.networks["baseline"] = Network(
                "token baseline",
                self.baseline.parameters(),
                lr=h.critic.lr,
                clip=h.grad_clip,
                micro=micro,
                setting="hierarchical.critic.lr",
            )

    def _network(self, role: Any, lr: float, setting: str) -> Network:
        return Network(
            role,
            self.roles.parameters(role),
            lr=lr,
            clip=self.h.grad_clip,
            micro=self.micro,
            setting=setting,
            engine=self.roles.engine(role),
        )

    def lessons(self, episodes: Sequence[Episode], judge: Judge | None) -> tuple[dict[str, Lesson], dict[str, float]]:
        """What both are to learn of these episodes, the same on every rank; and figures of that."""
        answers = answers_of(episodes)
        values = None if judge is None else self._values(judge, answers.said)
        found = {
            "actor": compute_advantages.actor_lesson(
                answers, values, self._reference(answers.said), self._baselines(answers.said), self.h
            )
        }
        figures = metrics.of_lesson("actor", found["actor"])
        if values is not None and judge is not None:
            figures |= metrics.of_values(values, compute_advantages.returns_of(answers, self.h)) | {
                "critic/gap": judge.gap()
            }
        if self.h.guidance.enabled:
            hints = hints_of(episodes)
            found["guidance"] = compute_advantages.guidance_lesson(
                hints, self._expected(hints.said), self._reference(hints.said), self.h
            )
            figures |= metrics.of_lesson("guidance", found["guidance"])
        return found, figures

    def _values(self, judge: Judge, said: Sequence[Segment]) -> Values:
        own = ranks.own(said)
        found = judge.of_answers([one.prompt for one in own], [one.tokens for one in own]) if own else None
        rows = (
            [] if found is None else list(zip(*found.q.tolist(), *found.v.tolist(), found.floor.tolist(), strict=True))
        )
        table = torch.tensor(gathered(rows), dtype=torch.float64).T
        return Values(q=table[:2], v=table[2:4], floor=table[4])

    def _reference(self, said: Sequence[Segment]) -> list[list[float]]:
        own, device = ranks.own(said), self.roles.device("reference")
        with self.roles.using("reference") as model:
            done = retry_on_oom(lambda rows: logprobs_of(model, device, own, rows), self.micro, phase="reference")
        return gathered(done.result)

    def _baselines(self, said: Sequence[Segment]) -> list[list[float]] | None:
        if self.baseline is None:
            return None
        with self.roles.using("actor") as model:
            return gathered(self.baseline.of(model, self.roles.device("actor"), ranks.own(said), self.micro))

    @torch.no_grad()
    def _expected(self, said: Sequence[Segment]) -> Tensor | None:
        """(N,): what a hint's pay is expected to be, where that is learned."""
        if self.roles.value is None:
            return None
        own, found = ranks.own(said), list[float]()
        for start in range(0, len(own), self.micro):
            texts = self.roles.read([one.prompt for one in own[start : start + self.micro]])
            found += self.roles.value(*text_of(texts, self.roles.device("value"))).tolist()
        return torch.tensor(gathered(found), dtype=torch.float64)

    def teach_actor(self, episodes: Sequence[Episode], lessons: Mapping[str, Lesson]) -> dict[str, float]:
        """The actor's updates, and one of its token baseline to each."""
        answers: Answers = answers_of(episodes)
        figures = self._baseline_steps(answers.said, lessons["actor"])
        return figures | metrics.of_policy("actor", self._steps("actor", answers.said, lessons["actor"]))

    def teach_guidance(self, episodes: Sequence[Episode], lessons: Mapping[str, Lesson]) -> dict[str, float]:
        """The guidance's updates, and one of what it expects to each."""
        hints = hints_of(episodes)
        figures = metrics.of_policy("guidance", self._steps("guidance", hints.said, lessons["guidance"]))
        if self.roles.value is None:
            return figures
        steps = self._value_steps(hints.said, compute_advantages.pay_of(hints, self.h).reshape(-1))
        return figures | metrics.of_steps("value", steps)

    def _steps(self, role: Speaking, said: Sequence[Segment], lesson: Lesson) -> list[Stepped]:
        rows = _share(said)
        with self.roles.using(role) as model:
            part = self.roles.through(role, policy_part(model, self.roles.device(role), said, lesson, self.h))
            return [update(self.networks[role], rows, part, COUNTED) for _ in range(self.h.updates)]

    def _baseline_steps(self, said: Sequence[Segment], lesson: Lesson) -> dict[str, float]:
        if self.baseline is None:
            return {}
        with self.roles.together("actor"), self.roles.using("actor") as model:
            part = self.baseline.part(model, self.roles.device("actor"), said, lesson.advantage, self.h.per)
            steps = [update(self.networks["baseline"], _share(said), part) for _ in range(self.h.updates)]
        return metrics.of_steps("baseline", steps)

    def _value_steps(self, said: Sequence[Segment], pay: Tensor) -> list[Stepped]:
        value, device, texts = self.roles.value, self.roles.device("value"), self.roles.read([o.prompt for o in said])
        assert value is not None

        def part(chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
            index = list(chosen)
            found = value(*text_of((texts[0][index], texts[1][index]), device))
            loss = (found - pay[index].to(found)).square().sum() / len(said)
            return loss, loss.new_zeros(0)

        return [update(self.networks["value"], _share(said), part) for _ in range(self.h.updates)]

    def plain(self, here: bool = True) -> dict[str, Any]:
        """Optimizers, and the token baseline, which no role is. All ranks must ask where models are in parts,
        also those that do not want it `here`."""
        return {
            "optimizers": {name: network.state(here) for name, network in self.networks.items()},
            "baseline": {} if self.baseline is None else self.baseline.state_dict(),
        }

    def load(self, plain: Mapping[str, Any]) -> None:
        """Be what `plain` was taken of."""
        for name, network in self.networks.items():
            network.load(plain["optimizers"][name])
        if self.baseline is not None:
            self.baseline.load_state_dict(plain["baseline"])


def _share(said: Sequence[Segment]) -> list[int]:
    """This rank's rows, of like length one after another."""
    return ranks.own(in_length(said, range(len(said))))
