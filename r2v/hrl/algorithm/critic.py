"""Critic and target network: two Q heads and two V heads over one text encoder.

After ArCHer (arXiv 2402.19446): f(text) is the backbone's state, Q_i(o, y) reads [f(o); f(y)], V_i(o) reads f(o). A
fifth head, the floor, is fit to E_y[min_i Q_i(o, y)], so that `min Q - floor`, unlike `min Q - min V`, has mean 0 under
the policy. The target network (`TargetNetwork`) follows the critic by Polyak averaging. It is kept in float32 or wider:
in bfloat16 a step of tau times a small gap rounds to 0, and a target at 0.9 never reaches 1. It may be on another
device; the average is taken there, a bounded number of values at a time, with the same bits.
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
"""Arguments of a backbone for N texts, e.g. (ids, mask)."""


@dataclass(frozen=True, kw_only=True)
class CriticValues:
    """Critic values of N utterances, or their TD targets."""

    q: Tensor
    """(2, N): Q_i(o, y)."""
    v: Tensor
    """(2, N): V_i(o)."""
    floor: Tensor
    """(N,): E_y[min_i Q_i(o, y)]."""


class MeanPooledEncoder(nn.Module):
    """Transformer encoder with its last hidden states averaged over a text's tokens, without padding."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return states (N, hidden_size) for ids (N, T) and a bool mask (N, T)."""
        states = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        weights = mask.to(states.dtype)[..., None]
        return (states * weights).sum(1) / weights.sum(1)  # type: ignore[no-any-return]


class DoubleCritic(nn.Module):
    """Double Q and V heads over `backbone`, which maps N texts to states (N, `size`), on `device`.

    `hidden`: widths inside each head; an empty one makes the heads linear.
    """

    def __init__(
        self, device: torch.device | str, backbone: nn.Module, size: int, hidden: Sequence[int] = (768, 768)
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.q = nn.ModuleList(_head(2 * size, hidden) for _ in range(2))
        self.v = nn.ModuleList(_head(size, hidden) for _ in range(2))
        self.floor = _head(size, hidden)
        self.to(device)

    def forward(self, observations: Text, utterances: Text) -> CriticValues:
        """Return Q, V and floor of N observations and their utterances."""
        observed, uttered = self._state(observations), self._state(utterances)
        return CriticValues(
            q=_apply(self.q, torch.cat([observed, uttered], dim=-1)),
            v=_apply(self.v, observed),
            floor=self.floor(observed).squeeze(-1),
        )

    def q_of(self, observations: Text, utterances: Text) -> Tensor:
        """Return Q_i (2, N)."""
        return _apply(self.q, torch.cat([self._state(observations), self._state(utterances)], dim=-1))

    def v_of(self, observations: Text) -> Tensor:
        """Return V_i (2, N)."""
        return _apply(self.v, self._state(observations))

    def _state(self, texts: Text) -> Tensor:
        """Return states (N, size) in the heads' dtype."""
        state: Tensor = self.backbone(*texts)
        return state.to(next(self.floor.parameters()).dtype)


def _head(size: int, hidden: Sequence[int]) -> nn.Sequential:
    widths = [size, *hidden]
    inner = [layer for i, width in enumerate(hidden) for layer in (nn.Linear(widths[i], width), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(widths[-1], 1))


def _apply(heads: nn.ModuleList, states: Tensor) -> Tensor:
    return torch.stack([head(states).squeeze(-1) for head in heads])


class TargetNetwork:
    """Frozen copy of the critic, without dropout, in float32 or wider, on `device` (None: the critic's).

    `tau`: Polyak coefficient. `chunk`: bound on the additional values that an update holds.
    """

    def __init__(self, online: DoubleCritic, tau: float = 0.1, device: Any = None, chunk: int = 1 << 20) -> None:
        self.online, self.tau, self.chunk = online, tau, chunk
        self.replace(copy.deepcopy(online), device)

    def replace(self, critic: DoubleCritic, device: Any = None) -> None:
        """Make `critic` the target network, frozen, on `device` (None: its own)."""
        self.critic = critic.eval().requires_grad_(False)
        for tensor in self.critic.parameters():
            tensor.data = tensor.data.to(device=device, dtype=_wide(tensor.dtype)).contiguous()
        for module in self.critic.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(device=device)

    def update(self, tau: float | None = None) -> None:
        """Take one Polyak step towards the critic, after each of its optimizer steps. `tau`: default, the target's."""
        pairs = zip(self.critic.parameters(), self.online.parameters(), strict=True)
        trained = [(target, online) for target, online in pairs if online.requires_grad]
        targets, onlines = [target for target, _ in trained], [online for _, online in trained]
        polyak_(targets, onlines, self.tau if tau is None else tau, self.chunk)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if torch.finfo(dtype).bits >= 32 else torch.float32


@torch.no_grad()
def polyak_(target: Iterable[Tensor], online: Iterable[Tensor], tau: float, chunk: int = 1 << 20) -> None:
    """Set target <- target + tau * (online - target), in place, `chunk` values at a time.

    The targets are contiguous and may be on other devices than `online`. Subtraction, product and sum are rounded
    separately, never fused, so the bits depend on neither chunk nor device. Raises UsageError for a target of less than
    32 bits, or a tau outside (0, 1].
    """
    if not 0 < tau <= 1:
        raise UsageError(f"hierarchical.critic.tau={tau}: must be above 0 and at most 1; 0.1 is a start")
    for averaged, current in zip(target, online, strict=True):
        if torch.finfo(averaged.dtype).bits < 32:
            raise UsageError(
                f"target critic in {str(averaged.dtype).removeprefix('torch.')}: steps of tau={tau} round to "
                "nothing in it and it never arrives; keep the target in float32 (TargetNetwork does)"
            )
        flat, source = averaged.view(-1), current.reshape(-1)
        for start in range(0, flat.numel(), chunk):
            values = flat[start : start + chunk]
            # `copy=True`, because the difference is computed in place and must not change the critic's weights
            values += source[start : start + chunk].to(values, copy=True).sub_(values).mul_(tau)
