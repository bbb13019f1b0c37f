"""The critic converges to known values, and its target network follows it slowly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import RobertaConfig, RobertaModel

from r2v.errors import UsageError
from r2v.hrl.algorithm.critic import DoubleCritic, MeanPooledEncoder, TargetNetwork, polyak_
from r2v.hrl.algorithm.losses import critic_loss, critic_targets
from tests.hrl import tabular_mdp

from .. import tabular

pytestmark = pytest.mark.numerical

FIRST, HINT, SECOND = [0, 0, 1, 2], [0, 1, 1, 1], [0, 1, 1, 2]
"""A policy as four equally likely draws, for every observation."""


def chances(draws: list[int], count: int) -> Tensor:
    return torch.bincount(torch.tensor(draws), minlength=count).double() / len(draws)


def transitions() -> tuple[Tensor, ...]:
    """Return observation, utterance, reward, done, next observation and draws (N, 4) of every possible transition."""
    r1, r2 = tabular_mdp.first_score(), tabular_mdp.second_score()
    a1, g1 = (part.reshape(-1) for part in torch.meshgrid(torch.arange(3), torch.tensor(HINT), indexing="ij"))
    a2, g2, b2 = (part.reshape(-1) for part in torch.meshgrid(*map(torch.arange, (3, 2, 3)), indexing="ij"))
    draws = [
        tabular.said_first(torch.tensor(FIRST)).expand(12, 4),
        tabular.said_second(a2[:, None], g2[:, None], torch.tensor(SECOND)),
    ]
    return (
        torch.cat([tabular.task(a1), tabular.second(a2, g2)]),
        torch.cat([tabular.said_first(a1), tabular.said_second(a2, g2, b2)]),
        torch.cat([r1[a1], r2[a2, g2, b2]]),
        torch.arange(30) >= 12,
        torch.cat([tabular.second(a1, g1), tabular.second(a2, g2)]),
        torch.cat(draws),
    )


def test_the_critic_alone_learns_the_values_of_a_fixed_policy() -> None:
    seen, said, rewards, done, after, draws = transitions()
    critic = tabular.critic()
    target = TargetNetwork(critic, tau=0.1)
    optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)
    for _ in range(3000):
        with torch.no_grad():
            drawn = target.critic.q_of((seen.repeat_interleave(4),), (draws.reshape(-1),)).reshape(2, -1, 4)
            wanted = critic_targets(rewards, done, target.critic.v_of((after,)), drawn, tabular_mdp.GAMMA)
        optimizer.zero_grad()
        critic_loss(critic((seen,), (said,)), wanted, len(seen)).backward()
        optimizer.step()
        target.update()
    policies = tabular_mdp.Policies(
        first=chances(FIRST, 3), hint=chances(HINT, 2).expand(3, 2), second=chances(SECOND, 3).expand(3, 2, 3)
    )
    known = tabular_mdp.worth(policies, (tabular_mdp.first_score(), tabular_mdp.second_score()))
    q = torch.cat([known.q1.repeat_interleave(4), known.q2.reshape(-1)])
    v = torch.cat([known.v1.expand(12), known.v2.reshape(-1).repeat_interleave(3)])
    with torch.no_grad():
        learnt = critic((seen,), (said,))
    assert float((learnt.q - q).abs().max()) < 1e-5
    assert float((learnt.v - v).abs().max()) < 1e-5
    assert float((learnt.floor - v).abs().max()) < 1e-5


@pytest.mark.parametrize(("steps", "distance"), [(1, 0.9), (10, 0.348678), (50, 0.00515378)])
def test_the_gap_to_a_critic_that_stands_still(steps: int, distance: float) -> None:
    target, online = torch.zeros(3), torch.ones(3)
    for _ in range(steps):
        polyak_([target], [online], 0.1)
    assert (online - target).tolist() == pytest.approx([distance] * 3, abs=1e-6)


def test_the_lag_behind_a_critic_that_moves_on() -> None:
    target, online = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for _ in range(400):
        online += 1
        polyak_([target], [online], 0.1)
    assert float(online - target) == pytest.approx(9.0)


def test_a_target_in_bfloat16_would_never_arrive() -> None:
    def end(dtype: torch.dtype) -> float:
        target, online = torch.tensor(0.9).to(dtype), torch.ones((), dtype=dtype)
        for _ in range(5000):
            target += (online - target) * 0.005
        return float(target)

    assert end(torch.bfloat16) == pytest.approx(0.8984, abs=1e-4)
    assert end(torch.float32) == pytest.approx(0.99999, abs=1e-5)
    slow = torch.tensor([0.9])
    for _ in range(5000):
        polyak_([slow], [torch.ones(1, dtype=torch.bfloat16)], 0.005)
    assert float(slow) == pytest.approx(0.99999, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_such_a_target_is_refused_and_none_is_made(dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=f"target critic in {str(dtype)[6:]}.*float32"):
        polyak_([torch.zeros(1, dtype=dtype)], [torch.ones(1)], 0.1)
    target = TargetNetwork(DoubleCritic("cpu", nn.Linear(4, 4), 4, (8,)).to(dtype))
    assert {tensor.dtype for tensor in target.critic.parameters()} == {torch.float32}
    assert {tensor.dtype for tensor in target.online.parameters()} == {dtype}


@pytest.mark.parametrize("tau", [0.0, -0.1, 1.5, float("nan")])
def test_a_tau_that_is_no_average_is_refused(tau: float) -> None:
    with pytest.raises(UsageError, match=r"critic\.tau"):
        polyak_([torch.zeros(1)], [torch.ones(1)], tau)


def updated(chunk: int, online_on: str = "cpu", target_on: str | None = None) -> list[Tensor]:
    """Return a target critic's parameters after five updates towards a critic that moves."""
    torch.manual_seed(1)
    critic = DoubleCritic("cpu", nn.Linear(16, 24), 24, (32, 32))
    moves = [[torch.randn_like(tensor) for tensor in critic.parameters()] for _ in range(5)]
    critic = critic.to(online_on)
    target = TargetNetwork(critic, tau=0.1, device=target_on, chunk=chunk)
    for step in moves:
        with torch.no_grad():
            for tensor, move in zip(critic.parameters(), step, strict=True):
                tensor += move.to(tensor.device)
        target.update()
    return [tensor.cpu() for tensor in target.critic.parameters()]


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_an_average_in_chunks_is_the_plain_one_to_the_bit(chunk: int) -> None:
    plain = updated(1 << 30)
    assert all(map(torch.equal, updated(chunk), plain))
    assert all(map(torch.equal, updated(chunk, target_on="cpu"), plain))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_average_on_the_cpu_of_a_critic_on_a_gpu_is_the_plain_one_to_the_bit() -> None:
    plain = updated(1 << 30)
    for target_on in ("cpu", "cuda", None):
        assert all(map(torch.equal, updated(1000, "cuda", target_on), plain))


def test_an_average_takes_no_more_than_a_chunk() -> None:
    """The largest tensor of an update, besides the target, has the size of a chunk."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        made = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if function.overloadpacket in (
                torch.ops.aten._to_copy,
                torch.ops.aten.clone,
                torch.ops.aten.sub,
                torch.ops.aten.mul,
                torch.ops.aten.lerp,
                torch.ops.aten.add,
            ):
                self.made = max(self.made, result.numel())
            return result

    target = TargetNetwork(DoubleCritic("cpu", nn.Linear(64, 64), 64, (64,)), chunk=100)
    with Largest() as largest:
        target.update()
    assert largest.made == 100


def test_the_target_is_a_frozen_copy_without_dropout() -> None:
    critic = DoubleCritic("cpu", nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), 4, (8,)).train()
    critic.backbone[0].weight.requires_grad_(False)
    target = TargetNetwork(critic, tau=1.0)
    assert not target.critic.training and critic.training
    assert not any(tensor.requires_grad for tensor in target.critic.parameters())
    with torch.no_grad():
        for tensor in critic.parameters():
            tensor += 1
    frozen = target.critic.backbone[0].weight.clone()
    target.update()
    for slow, fast in zip(target.critic.parameters(), critic.parameters(), strict=True):
        assert torch.equal(slow, frozen) if not fast.requires_grad else torch.allclose(slow, fast, rtol=0, atol=1e-6)


def test_heads_are_archers() -> None:
    """As in ArCHer, two hidden layers of 768: 5.91 M parameters for two Q and two V heads on a base of 768."""
    critic = DoubleCritic("cpu", nn.Identity(), 768)
    assert sum(tensor.numel() for head in (critic.q, critic.v) for tensor in head.parameters()) == 5_907_460
    said = critic((torch.randn(5, 768),), (torch.randn(5, 768),))
    assert (said.q.shape, said.v.shape, said.floor.shape) == ((2, 5), (2, 5), (5,))
    assert not torch.equal(said.q[0], said.q[1])


def test_all_heads_read_one_state_and_q_reads_both() -> None:
    critic = DoubleCritic("cpu", nn.Linear(3, 4), 4, (8,))
    seen, said, other = torch.randn(3, 6, 3).unbind(0)
    values = critic((seen,), (said,))
    assert torch.equal(critic.q_of((seen,), (said,)), values.q) and torch.equal(critic.v_of((seen,)), values.v)
    changed = critic((seen,), (other,))
    assert torch.equal(changed.v, values.v) and torch.equal(changed.floor, values.floor)
    assert not torch.equal(changed.q, values.q)
    assert not torch.equal(critic((other,), (said,)).q, values.q)


def test_an_encoders_state_is_the_mean_over_tokens_and_knows_no_pads() -> None:
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    encoder = RobertaModel(config, add_pooling_layer=False).eval()
    ids = torch.tensor([[0, 7, 8, 2, 1, 1], [0, 9, 10, 11, 12, 2]])
    mask = ids != 1
    state = MeanPooledEncoder(encoder)(ids, mask)
    alone = encoder(input_ids=ids[:1, :4]).last_hidden_state[0].mean(0)
    torch.testing.assert_close(state[0], alone, rtol=0, atol=1e-6)
    bf16 = DoubleCritic("cpu", MeanPooledEncoder(encoder.bfloat16()), 16, (8,))
    assert bf16((ids, mask), (ids, mask)).q.dtype == torch.float32
