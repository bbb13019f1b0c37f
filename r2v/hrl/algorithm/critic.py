"""What an utterance is worth: two Q and two V heads over one reader, and the slow copy that they learn from.

After ArCHer (arXiv 2402.19446): f(text) is a backbone's state, Q_i(o, y) reads [f(o); f(y)], V_i(o) reads f(o). A
fifth head, the floor, is fit to E_y[min_i Q_i(o, y)], so that `min Q - floor` has mean 0 under the policy, which
`min Q - min V` has not. The copy (`TargetCritic`) trails by Polyak averaging and is kept in float32 at least: in
bfloat16 steps of tau times a small gap round to nothing, and a copy at 0.9 would never reach 1. It may live on
another device; the average is made there, a bounded number of values at a time, to the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from r2v.errors import UsageError

Text = tuple[Tensor, ...]
"""What a backbone is called with for N texts, e.g. (ids, mask)."""


@dataclass(frozen=True, kw_only=True)
class Values:
    """What a critic says about N utterances, or what it should say."""

    q: Tensor
    """(2, N): Q_i(o, y)."""
    v: Tensor
    """(2, N): V_i(o)."""
    floor: Tensor
    """(N,): E_y[min_i Q_i(o, y)]."""


class MeanState(nn.Module):
    """Texts as the mean of a transformer's last hidden states over their tokens; pads do not matter."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(N, T) ids and bool mask -> (N, hidden_size)."""
        states = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        weights = mask.to(states.dtype)[..., None]
        return (states * weights).sum(1) / weights.sum(1)  # type: ignore[no-any-return]


class DoubleCritic(nn.Module):
    """Heads over `backbone`, which makes (N, `size`) states of N texts. `hidden` are the widths inside each head; none
    makes it linear."""

    def __init__(self, backbone: nn.Module, size: int, hidden: Sequence[int] = (768, 768)) -> None:
        super().__init__()
        self.backbone = backbone
        self.q = nn.ModuleList(_head(2 * size, hidden) for _ in range(2))
        self.v = nn.ModuleList(_head(size, hidden) for _ in range(2))
        self.floor = _head(size, hidden)

    def forward(self, observations: Text, utterances: Text) -> Values:
        """Q, V and floor of N observations and what was said upon them."""
        seen, said = self._state(observations), self._state(utterances)
        return Values(
            q=_apply(self.q, torch.cat([seen, said], dim=-1)),
            v=_apply(self.v, seen),
            floor=self.floor(seen).squeeze(-1),
        )

    def q_of(self, observations: Text, utterances: Text) -> Tensor:
        """Q_i (2, N)."""
        return _apply(self.q, torch.cat([self._state(observations), self._state(utterances)], dim=-1))

    def v_of(self, observations: Text) -> Tensor:
        """V_i (2, N)."""
        return _apply(self.v, self._state(observations))

    def _state(self, texts: Text) -> Tensor:
        """(N, size), in the heads' precision."""
        state: Tensor = self.backbone(*texts)
        return state.to(next(self.floor.parameters()).dtype)


def _head(size: int, hidden: Sequence[int]) -> nn.Sequential:
    widths = [size, *hidden]
    inner = [layer for i, width in enumerate(hidden) for layer in (nn.Linear(widths[i], width), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(widths[-1], 1))


def _apply(heads: nn.ModuleList, states: Tensor) -> Tensor:
    return torch.stack([head(states).squeeze(-1) for head in heads])


class TargetCritic:
    """The critic's slow copy: frozen, without dropout, in float32 at least, on `device` (None: the critic's own).

    `chunk` bounds what an update takes beside the copy, in values.
    """

    def __init__(self, online: DoubleCritic, tau: float = 0.1, device: Any = None, chunk: int = 1 << 20) -> None:
        self.online, self.tau, self.chunk = online, tau, chunk
        self.critic = copy.deepcopy(online).eval().requires_grad_(False)
        for tensor in self.critic.parameters():
            tensor.data = tensor.data.to(device=device, dtype=_wide(tensor.dtype)).contiguous()
        for module in self.critic.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device=device)

    def update(self) -> None:
        """One Polyak step towards the critic, after each of its optimizer's."""
        trained = [
            (slow, fast)
            for slow, fast in zip(self.critic.parameters(), self.online.parameters(), strict=True)
            if fast.requires_grad
        ]
        polyak_([slow for slow, _ in trained], [fast for _, fast in trained], self.tau, self.chunk)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if torch.finfo(dtype).bits >= 32 else torch.float32


@torch.no_grad()
def polyak_(target: Iterable[Tensor], online: Iterable[Tensor], tau: float, chunk: int = 1 << 20) -> None:
    """target <- target + tau * (online - target), in place, `chunk` values at a time.

    The targets are contiguous and may be on other devices than `online`. Subtraction, product and sum are rounded one
    by one, never fused, so the bits depend on neither chunk nor device. Raises UsageError for a target of less than
    32 bits, or a tau that does not lie in (0, 1].
    """
    if not 0 < tau <= 1:
        raise UsageError(f"hierarchical.critic.tau={tau}: must be above 0 and at most 1; 0.1 is a start")
    for slow, fast in zip(target, online, strict=True):
        if torch.finfo(slow.dtype).bits < 32:
            raise UsageError(
                f"target critic in {str(slow.dtype).removeprefix('torch.')}: steps of tau={tau} round to "
                "nothing in it and it never arrives; keep the target in float32 (TargetCritic does)"
            )
        flat, source = slow.view(-1), fast.reshape(-1)
        for start in range(0, flat.numel(), chunk):
            part = flat[start : start + chunk]
            part += source[start : start + chunk].to(part, copy=True).sub_(part).mul_(tau)
