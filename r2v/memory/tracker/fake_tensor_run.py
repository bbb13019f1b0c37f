"""Fake tensor run: the memory of a phase, measured by running it on tensors without data.

    run_fake(PhaseCase(phase="actor", model=values, lora_rank=16, micro_batch=4, tokens=128)).size

It does to memory what a training stage does, with real transformers, peft and AdamW: every role of the GPU is there
with its optimizer's moments, the micro-batches run forward and backward, and the optimizer steps.
`r2v.memory.tracker.phase_case.planned` predicts the same case; `benchmarks/planner.py` compares the two.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from r2v.memory.tracker.case_models import CaseCritic, core, decoder, log_probs, masked_batch, materialize
from r2v.memory.tracker.phase_case import PhaseCase
from r2v.memory.tracker.tracker import Tracked, Tracker


def run_fake(case: PhaseCase) -> Tracked:
    """Run it on fake tensors; the most live bytes at a time, and what they were."""
    with _without_data(), Tracker() as tracker:
        phase = _PhaseRun(case, tracker)
        with tracker.span(case.phase):
            phase.run()
    peak: Tracked = tracker.peaks[case.phase]
    return peak


def run_on_gpu(case: PhaseCase) -> int:
    """Run it on the GPU of this process with random weights; torch.cuda.max_memory_allocated, less what is still
    allocated when all is gone: cuBLAS's workspaces, which stay. Raises torch.OutOfMemoryError for a case that is larger
    than the GPU."""
    with torch.device("cuda"), torch.random.fork_rng(), Tracker() as tracker:
        phase = _PhaseRun(case, tracker, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        phase.run()
    peak = torch.cuda.max_memory_allocated()
    del phase, tracker
    gc.collect()
    return int(peak - torch.cuda.memory_allocated())


@contextmanager
def _without_data() -> Iterator[None]:
    """Fake tensors: shapes and no data. The caller's random state stays as it is."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.random.fork_rng(devices=[]):
        yield


class _PhaseRun:
    """All roles that are on the GPU, and the phase that runs."""

    def __init__(self, case: PhaseCase, tracker: Tracker, device: str = "cpu") -> None:
        self.case, self.tracker, self.device = case, tracker, device
        self.critic: nn.Module | None = None
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.model = self._language(("actor", "guidance") if case.hierarchical else ("policy",))
        self.others: list[nn.Module] = []
        if case.hierarchical and not case.lora_rank:
            self.others = [self._language(("guidance",)), self._language(())]
        if case.hierarchical and case.critic is not None:
            self.critic = self._critic(trained=True)
            self.others.append(self._critic(trained=False))

    def run(self) -> None:
        """The micro-batches of an update and its step; or a forward pass, or a generation."""
        case = self.case
        if case.phase in ("reference", "rollout"):
            self.model.eval()
            with torch.no_grad(), self._autocast():
                self._read_reference() if case.phase == "reference" else self._generate()
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
                states = core(self.model)(**masked_batch(self._ids(1))).last_hidden_state
                scores: Tensor = self.score(states[:, -1].to(self.score.weight.dtype))
                return scores.float().mean()
            return -log_probs(self.model, self._ids(1), case).mean()

    def _ids(self, texts: int) -> Tensor:
        return torch.zeros(self.case.micro_batch * texts, self.case.tokens, dtype=torch.long)

    def _autocast(self) -> Any:
        # hierarchical training has none under adapters
        under_autocast = self.case.precision == "mixed" and not (self.case.hierarchical and self.case.lora_rank)
        return torch.autocast(self.device, torch.bfloat16, enabled=under_autocast)

    def _read_reference(self) -> None:
        with self.model.disable_adapter() if self.case.lora_rank else nullcontext():
            log_probs(self.model if self.case.lora_rank else self.others[1], self._ids(1), self.case)

    def _generate(self) -> None:
        """A prompt of all tokens but one, and that one: the KV cache at its longest."""
        arguments = masked_batch(self._ids(1)) | {"use_cache": True, "logits_to_keep": 1}
        prompt = self.model(
            **arguments
            | {"input_ids": arguments["input_ids"][:, :-1], "attention_mask": arguments["attention_mask"][:, :-1]}
        )
        _choose(prompt.logits[:, -1])
        cache, prompt = prompt.past_key_values, None  # frees the prompt's logits
        last = self.model(**arguments | {"input_ids": arguments["input_ids"][:, -1:]}, past_key_values=cache).logits
        _choose(last[:, -1])

    def _language(self, roles: Sequence[str]) -> Any:
        model = decoder(self.case, roles)
        if self.case.phase == "verifier":
            self.score = nn.Linear(model.config.hidden_size, 1, dtype=model.dtype)
        if not self.case.lora_rank:
            self._track(model, roles[:1])
            return model
        for role in roles:
            model.set_adapter(role)
            self._track(model, [role])
        model.set_adapter(roles[0])
        return model

    def _critic(self, *, trained: bool) -> nn.Module:
        assert self.case.critic is not None
        with torch.device("meta"):
            model = CaseCritic(self.case.critic).train(trained).requires_grad_(trained)
        materialize(model)
        self._track(model, ["critic"] if trained else [])
        return model

    def _track(self, model: nn.Module, roles: Sequence[str]) -> None:
        """Count its bytes by name. A first step of its optimizer allocates the moments."""
        self.tracker.label("weights", model.parameters())
        parameters = [weight for weight in model.parameters() if weight.requires_grad]
        for role in roles:
            self.tracker.watch_gradients(parameters)
            optimizer = torch.optim.AdamW(
                parameters, foreach=self.case.optimizer == "adamw", fused=self.case.optimizer == "adamw_fused"
            )
            for weight in parameters:
                weight.grad = torch.zeros_like(weight)
            optimizer.step()
            optimizer.zero_grad()
            self.tracker.label("optimizer", _moments(optimizer))
            self.optimizers[role] = optimizer


def _choose(logits: Tensor) -> Tensor:
    """As r2v.llm.sampling.choose draws a token, which this layer must not import: its copies of the logits."""
    alive = list(range(len(logits)))
    logits = logits[alive]
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    grained = torch.round(logprobs * 1e9) / 1e9
    tempered = torch.softmax(grained[alive] / 1.0, dim=-1)
    entropy = -(logprobs.exp() * logprobs.clamp_min(-1e300)).sum(dim=-1)
    return tempered.cumsum(dim=-1).argmax(dim=-1) + entropy


def _moments(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
