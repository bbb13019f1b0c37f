"""The critic at work: what it remembers, how it learns from that by its slow copy's word, and what it says.

A row of its memory holds, as the critic reads them, what was seen, what was said and what was seen next; and the prompt
itself where answers are drawn anew for the value's target. A batch is one for all ranks, of which each learns its
slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from r2v import distributed
from r2v.config import HierarchicalConfig
from r2v.errors import InputError, UsageError
from r2v.hrl.algorithm import losses
from r2v.hrl.algorithm.critic import DoubleCritic, Text, Values
from r2v.hrl.models.encoders import text_of
from r2v.hrl.rollout.resampled_actions import Draws
from r2v.hrl.rollout.transitions import Transitions
from r2v.hrl.training import metrics
from r2v.hrl.training.optimizer_step import Network, Part, Stepped, update
from r2v.hrl.training.replay_buffer import Replay, usable

if TYPE_CHECKING:
    from r2v.hrl.models.roles import Roles

Tokens = tuple[int, ...]
Rows = tuple[Tensor, Tensor]
"""N texts as a replay keeps them: ids (N, W), lengths (N,)."""
Drawn = Callable[[Sequence[Tokens]], Sequence[Sequence[Tokens]]]
"""What the actor of now would say upon prompts, a few times each."""


class Judge:
    """A critic, its slow copy, its optimizer and its memory. `prompt_tokens` is the longest prompt there may be."""

    def __init__(self, roles: Roles, h: HierarchicalConfig, seed: int, micro: int, prompt_tokens: int) -> None:
        if h.critic.batch_size < distributed.ranks():
            raise UsageError(
                f"hierarchical.critic.batch_size={h.critic.batch_size}: {distributed.ranks()} ranks share "
                "it; set as many or more, or fewer training.ranks"
            )
        self.roles, self.h, self.seed, self.micro, self.prompt_tokens = roles, h, seed, micro, prompt_tokens
        self.network = Network(
            "critic",
            roles.parameters("critic"),
            lr=h.critic.lr,
            clip=h.grad_clip,
            micro=micro,
            setting="hierarchical.critic.lr",
        )
        text = {"ids": torch.zeros(h.critic.max_tokens, dtype=torch.int32), "lengths": torch.tensor(0)}
        columns = {f"{what}_{name}": column for what in ("seen", "said", "next") for name, column in text.items()}
        columns |= {
            "reward": torch.tensor(0.0, dtype=torch.float64),
            "done": torch.tensor(False),
            "version": torch.tensor(0),
        }
        if h.critic.draws:
            columns |= {"prompt": torch.zeros(prompt_tokens, dtype=torch.int32), "prompt_length": torch.tensor(0)}
        self.draws = Draws(roles, h, (seed, "again"))
        self.replay = Replay(h.replay.capacity, columns)

    def remember(self, came: Transitions) -> dict[str, Tensor]:
        """Add these rows; all ranks add the same. Returns them as they are remembered."""
        rows: dict[str, Tensor] = {"reward": came.reward, "done": came.done, "version": came.version}
        for what, texts in (("seen", came.seen), ("said", came.said), ("next", came.next)):
            rows[f"{what}_ids"], rows[f"{what}_lengths"] = self.roles.read(texts)
        if self.h.critic.draws:
            rows["prompt"], rows["prompt_length"] = self._prompts(came.seen)
        self.replay.add(rows)
        return rows

    def _prompts(self, seen: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        longest = max(map(len, seen))
        if longest > self.prompt_tokens:
            raise InputError(
                f"a prompt has {longest} tokens, policy.max_seq_len={self.prompt_tokens} allows fewer; "
                "raise it, leave long problems out, or set hierarchical.critic.draws=0"
            )
        table = torch.zeros(len(seen), self.prompt_tokens, dtype=torch.int32)
        for row, prompt in enumerate(seen):
            table[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        return table, torch.tensor([len(prompt) for prompt in seen])

    def study(self, iteration: int, actor: int, guidance: int) -> dict[str, float]:
        """This iteration's updates, upon these versions of the policies; figures of them."""
        made = self.draws.made
        steps = [
            self.learn(iteration, step, guidance, lambda states: self.draws.of(states, actor))
            for step in range(self.h.critic.updates)
        ]
        held = self.replay.columns["version"][: len(self.replay)]
        return metrics.of_steps("critic", steps) | {
            "critic/draws": self.draws.made - made,
            "replay/rows": len(self.replay),
            "replay/usable": float(self._usable(guidance).double().mean()),
            "replay/age": float((guidance - held[self._usable(guidance)]).double().mean()),
        }

    def _usable(self, version: int) -> Tensor:
        held = {name: self.replay.columns[name][: len(self.replay)] for name in ("done", "version")}
        return usable(held["done"], held["version"], version, self.h.replay.max_age)

    def learn(self, iteration: int, step: int, version: int, drawn: Drawn) -> Stepped:
        """One update of the critic and, after it, of its slow copy. `version` is the guidance's."""
        rows = self.replay.draw(
            self.h.critic.batch_size,
            self.seed,
            "critic",
            iteration,
            step,
            among=self._usable(version),
            rank=distributed.rank(),
            ranks=distributed.ranks(),
        )
        order = rows["seen_lengths"].argsort(stable=True)  # neighbours in length together: little padding
        rows = {name: column[order] for name, column in rows.items()}
        stepped = update(
            self.network,
            range(len(rows["reward"])),
            self._part(rows, self.wanted(rows, drawn), self.h.critic.batch_size),
        )
        self.roles.target.update()
        return stepped

    def _part(self, rows: dict[str, Tensor], wanted: Values, whole: int) -> Part:
        seen, said = _texts(rows, "seen"), _texts(rows, "said")
        device = self.roles.device("critic")

        def part(chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
            index = list(chosen)
            found: Values = self.roles.critic(_at(seen, index, device), _at(said, index, device))
            target = Values(
                q=wanted.q[:, index].to(found.q),
                v=wanted.v[:, index].to(found.v),
                floor=wanted.floor[index].to(found.floor),
            )
            loss = losses.critic_loss(found, target, whole)
            return loss, loss.new_zeros(0)

        return part

    @torch.no_grad()
    def wanted(self, rows: dict[str, Tensor], drawn: Drawn | None = None) -> Values:
        """What the critic should say of these rows, by its slow copy's word; V of the answers `drawn` for it, or of
        those that were given."""
        again = [_texts(rows, "said")] if drawn is None or not self.h.critic.draws else self._again(rows, drawn)
        seen, ahead, device = _texts(rows, "seen"), _texts(rows, "next"), self.roles.device("target")
        slow, found = self.roles.target.critic, []
        for start in range(0, len(rows["reward"]), self.micro):
            some = slice(start, start + self.micro)
            q = torch.stack([slow.q_of(_at(seen, some, device), _at(one, some, device)) for one in again], -1)
            v = self._ahead(ahead, rows["done"], some, q)
            found.append(
                losses.critic_targets(
                    rows["reward"][some].to(v),
                    rows["done"][some].to(device),
                    v,
                    q,
                    self.h.gamma,
                    self.h.critic.pessimistic,
                )
            )
        return _joined(found)

    def _ahead(self, texts: Rows, done: Tensor, some: slice, like: Tensor) -> Tensor:
        """(2, n): Vbar of what came next, where something did; nobody looks behind a last answer."""
        found, going = like.new_zeros(2, len(done[some])), (~done[some]).nonzero().squeeze(-1)
        if len(going):
            found[:, going.to(found.device)] = self.roles.target.critic.v_of(
                _at(texts, (going + some.start).tolist(), self.roles.device("target"))
            )
        return found

    def _again(self, rows: dict[str, Tensor], drawn: Drawn) -> list[Rows]:
        prompts = [
            tuple(ids[:length])
            for ids, length in zip(rows["prompt"].tolist(), rows["prompt_length"].tolist(), strict=True)
        ]
        answers = drawn(prompts)
        return [self.roles.read([some[k] for some in answers]) for k in range(self.h.critic.draws)]

    @torch.no_grad()
    def error(self, rows: dict[str, Tensor]) -> float:
        """The loss on rows that it has not learned from yet."""
        said, wanted = self.values(_texts(rows, "seen"), _texts(rows, "said")), self.wanted(rows)
        return float(losses.critic_loss(said, wanted, len(rows["reward"])))

    @torch.no_grad()
    def values(self, seen: Rows, said: Rows) -> Values:
        """What the critic says of N answers, on the CPU."""
        critic: DoubleCritic = self.roles.critic
        device, found = self.roles.device("critic"), []
        for start in range(0, len(seen[0]), self.micro):
            some = slice(start, start + self.micro)
            found.append(critic(_at(seen, some, device), _at(said, some, device)))
        return _joined(found)

    def of_answers(self, prompts: Sequence[Tokens], answers: Sequence[Tokens]) -> Values:
        """What the critic says of answers to prompts, (2, N) and (N,) on the CPU in float64."""
        return self.values(self.roles.read(prompts), self.roles.read(answers))

    @torch.no_grad()
    def gap(self) -> float:
        """How far the critic is from its slow copy: the norm of the difference of their weights."""
        return float(
            torch.stack(
                [
                    (fast.detach().to(slow) - slow).square().sum().double().cpu()
                    for slow, fast in zip(
                        self.roles.target.critic.parameters(), self.roles.critic.parameters(), strict=True
                    )
                ]
            )
            .sum()
            .sqrt()
        )


def _texts(rows: dict[str, Tensor], what: str) -> Rows:
    return rows[f"{what}_ids"], rows[f"{what}_lengths"]


def _at(texts: Rows, index: slice | Sequence[int], device: Any) -> Text:
    return text_of((texts[0][index], texts[1][index]), device)


def _joined(parts: Sequence[Values]) -> Values:
    return Values(
        q=torch.cat([part.q for part in parts], -1).double().cpu(),
        v=torch.cat([part.v for part in parts], -1).double().cpu(),
        floor=torch.cat([part.floor for part in parts], -1).double().cpu(),
    )
