"""The memory of a phase, by doing it: real models, real peft, real AdamW, tensors without data.

    rehearse(Case(model=values, action="train", lora_rank=16, rows=4, tokens=128))

It does what a training stage does to memory: every role of the GPU stands there with its optimizer's moments, two
micro-batches are taken forward and back (or one), and the optimizer steps. `planned` is what the planner says of
the same case; `benchmarks/planner.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from r2v.memory.model_registry import Values
from r2v.memory.planner.phases import Need, need
from r2v.memory.planner.roles import Device, Phase, devices
from r2v.memory.planner.state import Optimizer, Precision
from r2v.memory.planner.work import Setting, StageName, Work
from r2v.memory.shapes import HEAD, from_config
from r2v.memory.tracker.tracker import Tracked, Tracker

PhaseName = Literal["actor", "guidance", "critic", "reference", "rollout", "bc", "verifier"]
_STAGES: dict[str, StageName] = {"bc": "bc", "verifier": "verifier"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One phase of one way of training, small enough for a test or as large as a real one: nothing is allocated."""

    phase: PhaseName
    model: Values
    """config.json of the language model."""
    critic: Values | None = None
    lora_rank: int = 16
    precision: Precision = "bfloat16"
    optimizer: Optimizer = "adamw"
    checkpoint: bool = False
    chunk: int | None = 1024
    rows: int = 4
    """Rows at a time."""
    tokens: int = 128
    micro_batches: int = 2
    """Of an update."""


def planned(case: Case) -> Need:
    """What the planner says of it."""
    work, setting, device, phase = _as_planned(case)
    return need(work, setting, device, phase, case.rows)


def state_of(case: Case) -> float:
    """Bytes of weights, optimizers and the phase's own gradients, as the planner counts them."""
    _, _, device, phase = _as_planned(case)
    return sum(role.state.total if role.name == phase.role else role.state.resting for role in device.roles)


def rehearse(case: Case) -> Tracked:
    """Do it, and tell the most bytes at a time."""
    with _without_data(), Tracker() as tracker:
        cast = _Cast(case, tracker)
        with tracker.span(case.phase):
            cast.perform()
    peak: Tracked = tracker.peaks[case.phase]
    return peak


def measure(case: Case) -> int:
    """Do it on the GPU of this process, with random weights, and tell torch.cuda.max_memory_allocated. What is larger
    than the GPU raises torch.OutOfMemoryError."""
    with torch.device("cuda"), torch.random.fork_rng(), Tracker() as tracker:
        cast = _Cast(case, tracker, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        cast.perform()
        return int(torch.cuda.max_memory_allocated())


def _as_planned(case: Case) -> tuple[Work, Setting, Device, Phase]:
    stage = _STAGES.get(case.phase, "hierarchical")
    work = Work(
        stage=stage,
        model=from_config(case.model),
        critic=from_config(case.critic) if case.critic else None,
        lora_rank=case.lora_rank,
        precision=case.precision,
        optimizer=case.optimizer,
        prompt_tokens=case.tokens - 1,
        completion_tokens=1,
        critic_tokens=case.tokens,
        batch=case.rows * case.micro_batches,
    )
    placement: Literal["shared", "full"] = "shared" if stage == "hierarchical" and case.lora_rank else "full"
    setting = Setting(placement=placement, checkpoint=case.checkpoint, chunk=case.chunk)
    device = devices(work, setting, 1)[0]
    name = "rollout, actor" if case.phase == "rollout" else case.phase
    return work, setting, device, next(one for one in device.phases if one.name == name)


@contextmanager
def _without_data() -> Iterator[None]:
    """Tensors have shapes and no bytes; no autograd state of the caller is touched."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.random.fork_rng(devices=[]):
        yield


class _Cast:
    """Every role that stands on the GPU, and the one whose turn it is."""

    def __init__(self, case: Case, tracker: Tracker, device: str = "cpu") -> None:
        self.case, self.tracker, self.device = case, tracker, device
        self.critic: nn.Module | None = None
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        hierarchical = case.phase not in _STAGES
        self.model = self._language(("actor", "guidance") if hierarchical else ("policy",))
        self.others: list[nn.Module] = []
        if hierarchical and not case.lora_rank:
            self.others = [self._language(("guidance",)), self._language(())]
        if hierarchical and case.critic is not None:
            self.critic = self._critic(trained=True)
            self.others.append(self._critic(trained=False))

    def perform(self) -> None:
        """Micro-batches and a step, or a reading."""
        case = self.case
        if case.phase in ("reference", "rollout"):
            self.model.eval()
            with torch.no_grad(), self._autocast():
                self._read() if case.phase == "reference" else self._write()
            return
        role = {"bc": "policy", "verifier": "policy"}.get(case.phase, case.phase)
        if role == "guidance" and case.lora_rank:
            self.model.set_adapter(role)
        for _ in range(case.micro_batches):
            self._loss().backward()  # type: ignore[no-untyped-call]
        self.optimizers[role].step()
        self.optimizers[role].zero_grad()

    def _loss(self) -> Tensor:
        case = self.case
        if case.phase == "critic":
            assert self.critic is not None
            loss: Tensor = self.critic(self._ids(2))
            return loss
        with self._autocast():
            if case.phase == "verifier":
                states = _core(self.model)(**_batch(self._ids(1))).last_hidden_state
                scores: Tensor = self.top(states[:, -1].to(self.top.weight.dtype))
                return scores.float().mean()
            return -_log_probs(self.model, self._ids(1), case).mean()

    def _ids(self, texts: int) -> Tensor:
        return torch.zeros(self.case.rows * texts, self.case.tokens, dtype=torch.long)

    def _autocast(self) -> Any:
        narrow = self.case.precision == "mixed" and self.case.phase in _STAGES  # hierarchical training has none
        return torch.autocast(self.device, torch.bfloat16, enabled=narrow)

    def _read(self) -> None:
        with self.model.disable_adapter() if self.case.lora_rank else nullcontext():
            _log_probs(self.model if self.case.lora_rank else self.others[1], self._ids(1), self.case)

    def _write(self) -> None:
        """A prompt of all tokens but one, and that one: the cache at its longest."""
        whole = _batch(self._ids(1)) | {"use_cache": True, "logits_to_keep": 1}
        begun = self.model(
            **whole | {"input_ids": whole["input_ids"][:, :-1], "attention_mask": whole["attention_mask"][:, :-1]}
        )
        begun.logits.float().softmax(-1)
        cache, begun = begun.past_key_values, None
        self.model(**whole | {"input_ids": whole["input_ids"][:, -1:]}, past_key_values=cache)[0].float().softmax(-1)

    def _language(self, roles: Sequence[str]) -> Any:
        model = _decoder(self.case, roles)
        if self.case.phase == "verifier":
            self.top = nn.Linear(model.config.hidden_size, 1, dtype=model.dtype)
        if not self.case.lora_rank:
            self._stand(model, roles[:1])
            return model
        for role in roles:
            model.set_adapter(role)
            self._stand(model, [role])
        model.set_adapter(roles[0])
        return model

    def _critic(self, *, trained: bool) -> nn.Module:
        assert self.case.critic is not None
        with torch.device("meta"):
            model = _Critic(self.case.critic).train(trained).requires_grad_(trained)
        _stand_in(model)
        self._stand(model, ["critic"] if trained else [])
        return model

    def _stand(self, model: nn.Module, roles: Sequence[str]) -> None:
        """Name its bytes; its optimizer has made a step before."""
        self.tracker.call_them("weights", model.parameters())
        parameters = [one for one in model.parameters() if one.requires_grad]
        for role in roles:
            self.tracker.watch_gradients(parameters)
            optimizer = torch.optim.AdamW(
                parameters, foreach=self.case.optimizer == "adamw", fused=self.case.optimizer == "adamw_fused"
            )
            for one in parameters:
                one.grad = torch.zeros_like(one)
            optimizer.step()
            optimizer.zero_grad()
            self.tracker.call_them("optimizer", _moments(optimizer))
            self.optimizers[role] = optimizer


def _moments(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def _decoder(case: Case, roles: Sequence[str]) -> Any:
    """The language model, with an adapter for each role or else all weights trained where there is a role."""
    from transformers import AutoConfig, AutoModelForCausalLM

    narrow = case.precision == "bfloat16" or (case.precision == "mixed" and case.lora_rank > 0)
    values = {key: value for key, value in case.model.items() if key not in ("model_type", "dtype")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(case.model["model_type"], **values),
            attn_implementation="sdpa",
            dtype=torch.bfloat16 if narrow else torch.float32,
        )
        model.train(bool(roles)).requires_grad_(bool(roles))
        if case.lora_rank and roles:
            model = _adapted(model, roles, case)
    if case.checkpoint:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    _stand_in(model, torch.bfloat16 if case.precision == "bfloat16" else torch.float32)
    return model


def _adapted(model: Any, roles: Sequence[str], case: Case) -> Any:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=case.lora_rank,
        lora_alpha=2 * case.lora_rank,
        target_modules="all-linear",
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, settings, adapter_name=roles[0], low_cpu_mem_usage=True)
    for role in roles[1:]:
        adapted.add_adapter(role, settings, low_cpu_mem_usage=True)
    return adapted


def _stand_in(model: nn.Module, adapters: torch.dtype | None = None) -> None:
    """Put random tensors on the device of the context (under fake mode: without data) in place of those on meta, where
    fused attention has no shape of its own; what was one tensor stays one. Adapters stand in the type given."""
    made: dict[int, nn.Parameter] = {}
    for place, module in model.named_modules():
        for name, old in list(module._parameters.items()):
            if old is not None:
                dtype = adapters if adapters is not None and "lora_" in place else old.dtype
                made.setdefault(
                    id(old), nn.Parameter(torch.empty(old.shape, dtype=dtype).normal_(0, 0.02), old.requires_grad)
                )
                module._parameters[name] = made[id(old)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)


def _core(model: Any) -> Any:
    """The transformer under adapters and head."""
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    return whole.model


def _batch(ids: Tensor) -> dict[str, Any]:
    """Rows of unequal length: with a mask."""
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}


def _log_probs(model: Any, ids: Tensor, case: Case) -> Tensor:
    """Log-probabilities of the tokens, (rows * tokens,): all logits at once, or a chunk at a time, each forgotten and
    made again in backward."""
    if case.chunk is None:
        return _picked(model(**_batch(ids)).logits.flatten(0, 1), ids.flatten())
    states, table = _core(model)(**_batch(ids)).last_hidden_state, model.get_output_embeddings()
    parts = zip(torch.split(states.flatten(0, 1), case.chunk), torch.split(ids.flatten(), case.chunk), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([_of_tokens(table(part), own) for part, own in parts])
    return torch.cat(
        [
            checkpoint(lambda part, own: _of_tokens(table(part), own), part, own, use_reentrant=False)
            for part, own in parts
        ]
    )


def _picked(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)


def _of_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """As r2v.hrl.algorithm.logprobs has it, which this layer must not import."""
    wide = logits.float()
    return wide.gather(-1, ids[:, None]).squeeze(-1) - wide.logsumexp(-1)


class _Critic(nn.Module):
    """A backbone that reads states and utterances, and five heads on the means of what it makes of them."""

    def __init__(self, values: Values) -> None:
        from transformers import AutoConfig, AutoModel

        super().__init__()
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        given = {key: value for key, value in values.items() if key not in ("model_type", "dtype")}
        self.backbone = AutoModel.from_config(AutoConfig.for_model(values["model_type"], **given | still))
        hidden = self.backbone.config.hidden_size
        self.q = nn.ModuleList(_head(2 * hidden) for _ in range(2))
        self.v = nn.ModuleList(_head(hidden) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        """A loss over rows of which the first half are states and the second their utterances."""
        whole = _batch(ids)
        weights = whole["attention_mask"].float()[..., None]
        means = (self.backbone(**whole).last_hidden_state * weights).sum(1) / weights.sum(1)
        read, said = means.chunk(2)
        both = torch.cat([read, said], 1)
        return torch.stack([*(head(both).mean() for head in self.q), *(head(read).mean() for head in self.v)]).sum()


def _head(inside: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inside, HEAD), nn.ReLU(), nn.Linear(HEAD, HEAD), nn.ReLU(), nn.Linear(HEAD, 1))
