"""Verifier model: last hidden state of a small language model, a linear head, a temperature, a sigmoid.

The state is read at the last token of "context + action". In training, rows are padded on the right, where neither
attention nor a short convolution can carry a pad back to a token; scoring reuses prefixes (`r2v.llm.local.prefill`).
Only trained tensors and the head's settings are written; the caller loads the base. Of a verifier of adapters only the
head is written here; its adapters are written as peft reads them, for a shared base (`r2v.policy.shared_base`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from r2v.errors import InputError
from r2v.llm.local.prefill import prefill
from r2v.llm.local.prefix_cache import PrefixCache
from r2v.llm.types import ScoreReply, ScoreRequest
from r2v.memory.on_device.wave_rows import WaveRows
from r2v.storage.files import replacing, write_text
from r2v.storage.weights import readable_model
from r2v.wire.message import Message

Encode = Callable[[Sequence[Message], str], list[int]]
"""(context, action) -> token ids, ending with the action."""

WEIGHTS, SETTINGS = "verifier.safetensors", "verifier.json"
_HEAD = "head."


class VerifierModel(nn.Module):
    """Verifier on `backbone`, a transformers model with or without its language-model head and adapters."""

    def __init__(self, backbone: Any, temperature: float = 1.0) -> None:
        super().__init__()
        self.backbone = _core(backbone)
        first = next(self.backbone.parameters())
        # In half precision small updates of the head would be rounded away.
        dtype = torch.promote_types(first.dtype, torch.float32) if first.is_floating_point() else torch.float32
        self.head = nn.Linear(self.backbone.config.hidden_size, 1, device=first.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.temperature = temperature

    def forward(self, ids: Tensor, lengths: Tensor, row: Tensor, end: Tensor) -> Tensor:
        """Return logits (prefixes,) before the temperature, of the first `end` (prefixes,) tokens of each `row`
        (prefixes,). ids: (rows, time), right-padded; lengths: (rows,)."""
        return self.score(self._states(ids, lengths, row, end))

    def _states(self, ids: Tensor, lengths: Tensor, row: Tensor, end: Tensor) -> Tensor:
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        output = self.backbone(input_ids=ids, attention_mask=mask.long(), use_cache=False)
        return output.last_hidden_state[row, end - 1]  # type: ignore[no-any-return]

    def score(self, states: Tensor) -> Tensor:
        """Return the head's logits (n,) of hidden states (n, hidden size)."""
        return self.head(states.to(self.head.weight.dtype)).squeeze(-1)  # type: ignore[no-any-return]

    def features(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the head's input: hidden states (rows, hidden size) at the last tokens of rows of any lengths."""
        device = self.head.weight.device
        ids, lengths = pad(rows, device)
        return self._states(ids, lengths, torch.arange(len(rows), device=device), lengths)

    def logits_at(self, rows: Sequence[Sequence[int]], ends: Sequence[Sequence[int]]) -> Tensor:
        """Return the flat logits, in order, of the prefixes of `rows[i]` with lengths `ends[i]`."""
        device = self.head.weight.device
        prefixes = [(row, end) for row, own in enumerate(ends) for end in own]
        row, end = torch.tensor(prefixes, device=device).T
        return self.forward(*pad(rows, device), row, end)


def _core(model: Any) -> Any:
    """Return the model without its language-model head; injected adapters stay."""
    if hasattr(model, "peft_config"):
        model = model.get_base_model()
    return model.base_model


def pad(rows: Sequence[Sequence[int]], device: Any = None) -> tuple[Tensor, Tensor]:
    """Return right-padded ids (rows, longest) and lengths (rows,). The pad id is irrelevant."""
    lengths = torch.tensor([len(row) for row in rows], device=device)
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long, device=device)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, device=device)
    return ids, lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedScoreRequest(ScoreRequest):
    """Question with the token ids of its context and action."""

    row: tuple[int, ...]


class VerifierBackend:
    """`Backend[ScoreRequest, ScoreReply]` of the probability that an action is good, rounded to 6 decimals."""

    def __init__(self, model: VerifierModel, encode: Encode, max_batch: int | WaveRows = 64) -> None:
        self.model, self.encode = model.eval(), encode
        self._rows = WaveRows(most=max_batch) if isinstance(max_batch, int) else max_batch
        self.max_batch = self._rows.most
        self._prefixes = PrefixCache(model.backbone) if PrefixCache.supports(model.backbone) else None

    def prepare(self, question: ScoreRequest) -> ScoreRequest:
        """Return the question with its token ids."""
        row = tuple(self.encode(question.messages, question.action))
        return EncodedScoreRequest(messages=question.messages, action=question.action, row=row)

    def answer(self, questions: Sequence[ScoreRequest]) -> list[ScoreReply]:
        """Return one score in [0, 1] per question, in order."""
        rows = [
            question.row
            if isinstance(question, EncodedScoreRequest)
            else self.encode(question.messages, question.action)
            for question in questions
        ]
        if self.model.head.weight.device.type == "cpu":
            torch.set_num_threads(1)
        longest = max(map(len, rows))
        with torch.inference_mode():
            logits = self._rows.run(partial(self._logits, rows), tokens=longest, total=len(rows), phase="verifier")
            scores = torch.sigmoid(logits.double() / self.model.temperature)
        return [
            ScoreReply(score=round(score, 6), tokens_in=len(row))
            for score, row in zip(scores.tolist(), rows, strict=True)
        ]

    def _logits(self, rows: Sequence[Sequence[int]], size: int) -> Tensor:
        """Return logits (rows,) before the temperature, of `size` rows at a time."""
        logits = self.model.head.weight.new_empty(len(rows))
        for start in range(0, len(rows), size):
            for read in prefill(self.model.backbone, rows[start : start + size], 0, self._prefixes):
                newest = read.output.last_hidden_state[:, -1].to(logits.dtype)
                logits[[start + row for row in read.rows]] = self.model.head(newest).squeeze(-1)
        return logits


def save(model: VerifierModel, folder: Path, *, adapted: bool = False) -> None:
    """Write the trained tensors and the head's settings, deterministically. Of an `adapted` model only the head is
    written: `r2v.policy.export.export_adapters` writes its adapters."""
    from safetensors.torch import save as serialised

    trained = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.named_parameters()
        if tensor.requires_grad and (name.startswith(_HEAD) or not adapted)
    }
    with replacing(folder / WEIGHTS) as file:
        file.write(serialised(trained))
    settings = {"hidden_size": model.backbone.config.hidden_size, "temperature": model.temperature}
    _write_settings(folder, settings)


def set_temperature(folder: Path, temperature: float) -> None:
    """Replace the temperature of a written verifier."""
    _write_settings(folder, {**json.loads((folder / SETTINGS).read_text()), "temperature": temperature})


def _write_settings(folder: Path, settings: dict[str, float]) -> None:
    write_text(folder / SETTINGS, json.dumps(settings, sort_keys=True, indent=1) + "\n")


def load(folder: Path, backbone: Any) -> VerifierModel:
    """Return the verifier of a folder, frozen, in the backbone's precision. `backbone`: its own, overwritten with the
    verifier's weights, or a shared one with its adapters active. Raise InputError if the weights do not fit."""
    from safetensors.torch import load_file

    remedy = "set policy.model_name and policy.lora_r as in training"
    with readable_model(f"{folder}: not a verifier of this base", remedy):
        settings = json.loads((folder / SETTINGS).read_text())
        tensors = load_file(folder / WEIGHTS)
        temperature = float(settings["temperature"])
        model = VerifierModel(backbone, temperature=temperature)
        missing, unknown = model.load_state_dict(tensors, strict=False)
    absent = sorted(missing, key=lambda name: not name.startswith(_HEAD))
    wrong = ", ".join(sorted(unknown)[:3]) or ", ".join(f"no {name}" for name in absent[:3])
    if not math.isfinite(temperature) or temperature <= 0:
        wrong = f"temperature {temperature}"
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            wrong = f"{name} holds NaN or infinite weights"
    if wrong:
        raise InputError(f"{folder}: not a verifier of this base ({wrong}); {remedy}")
    return model.eval().requires_grad_(False)
