"""Trainings for `test_ranks.py`, in its own process or, run as a script, by the ranks of a launch."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from r2v.config import Phase, PolicyConfig, PreferenceConfig
from r2v.data.episode import Action, Episode, EpisodeMetadata, Observation, Step
from r2v.distributed import join, rank, ranks, run_rank
from r2v.policy.load import Loaded, load_policy
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.policy.training import bc, preference
from r2v.policy.training.fit import schedule
from r2v.randomness import generator
from tests import tiny_models

PHASE = Phase(
    num_epochs=1,
    lr=5e-3,
    batch_size=8,
    gradient_accumulation_steps=1,
    weight_decay=0.0,
    warmup_ratio=0.0,
    grad_clip=1.0,
    save_steps=2,
    max_examples=None,
)
ROWS = 18
"""Rows: the last of the three updates is short, and on two ranks one of its micro-batches is blank."""


BASE = "base"
"""Folder of the model that one rank reads."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training in shards."""

    what: str
    lora: int = 0
    in_4bit: bool = False

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return f"{self.what}-{self.lora}" + "-in-4bit" * self.in_4bit


CASES_IN_PARTS = [Case(what=what, lora=lora) for what in ("bc", "preference") for lora in (0, 4)]
if find_spec("bitsandbytes"):
    CASES_IN_PARTS += [Case(what=what, lora=4, in_4bit=True) for what in ("bc", "preference")]


def episode(i: int) -> Episode:
    page = " ".join(f"w{generator('page', i, j).randrange(48)}" for j in range(1 + i % 7))
    return Episode(
        episode_id=f"t{i}/s1",
        success=True,
        metadata=EpisodeMetadata(task_id=f"t{i}", goal=f"open w{i}", benchmark="toy", split="train"),
        steps=(
            Step(
                step_idx=0,
                observation=Observation(raw_text=page),
                action=Action(raw_text=f"get w{i}" + " done" * (i % 3)),
            ),
        ),
    )


def pair(i: int) -> preference.Pair:
    page = " ".join(f"w{(i + j) % 48}" for j in range(1 + i % 7))
    return preference.Pair(
        prompt=build_messages(f"open w{i}", [page], []),
        chosen="get w1" + " done" * (i % 3),
        rejected="close w2",
        task_id=f"t{i // 2}",
    )


EPISODES, PAIRS = [episode(i) for i in range(ROWS)], [pair(i) for i in range(ROWS)]


def loaded(dtype: torch.dtype = torch.float32, lora: int = 0) -> Loaded:
    tokenizer = tiny_models.tokenizer()
    model = tiny_models.model(len(tokenizer), 0, dtype)
    if lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        model = get_peft_model(
            model, LoraConfig(r=lora, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        )
    return Loaded(model=model, tokenizer=tokenizer, name="toy")


def encoder() -> Encoder:
    return Encoder(tiny_models.tokenizer(), max_seq_len=96, reserve=6)


def trainer_of(what: str, model: Loaded, phase: Phase, out: Path) -> Any:
    """Return the trainer that the phase itself would make."""
    if what == "bc":
        rows = bc.build_rows(EPISODES, encoder()).rows
        return bc.make_bc_trainer(rows, schedule([len(row.ids) for row in rows], phase, 0), model, phase, out, 0)
    pairs, _ = preference.build_rows(PAIRS, encoder())
    order = schedule([len(row) for row in pairs], phase, 0)
    return preference.make_trainer([pairs[i] for i in order], model, phase, PreferenceConfig(sft_weight=0.7), out, 0)


class Gradients(TrainerCallback):  # type: ignore[misc]
    """Keeps every update's gradient as the optimizer gets it."""

    def __init__(self) -> None:
        self.kept: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.kept.append({name: weight.grad.clone() for name, weight in model.named_parameters()})


def gradients(what: str, out: Path, phase: Phase = PHASE) -> list[dict[str, torch.Tensor]]:
    """Return the gradients of every update, in float64."""
    trainer, kept = trainer_of(what, loaded(torch.float64), phase, out), Gradients()
    trainer.add_callback(kept)
    trainer.train()
    return kept.kept


def train(
    what: str, out: Path, lora: int = 0, zero: int = 0, fsdp: bool = False, model: Loaded | None = None
) -> dict[str, Any]:
    """Train the whole phase; return its report."""
    phase = replace(PHASE, lr=5e-3 if what == "bc" else 1e-3, zero=zero, fsdp=fsdp)
    phase = phase if ranks() > 1 else replace(phase, batch_size=4, gradient_accumulation_steps=2)  # as two ranks have
    model = model or loaded(lora=lora)
    if what == "bc":
        return bc.train_bc(EPISODES, model, encoder(), phase, out, seed=0)
    return preference.train_preference(PAIRS, model, encoder(), phase, PreferenceConfig(), out, seed=0)


def save_base(folder: Path) -> None:
    """Save the model as a folder of weights and a tokenizer."""
    model = loaded()
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def read_base(folder: Path, case: Case, sharded: bool = False) -> Loaded:
    """Return that folder's model as the stage would load it for this case."""
    policy = PolicyConfig(model_name=str(folder), lora_r=case.lora, load_in_4bit=case.in_4bit, device="cpu")
    return load_policy(policy, for_training=True, sharded=sharded)


def cut_short(whole: Path, killed: Path) -> None:
    """Copy `whole` as it was when its first checkpoint had just been written; tear the second."""
    shutil.copytree(whole / "checkpoint-2", killed / "checkpoint-2")
    (killed / "checkpoint-latest").symlink_to("checkpoint-2")
    (killed / "checkpoint-3").mkdir()
    (killed / "checkpoint-3" / "model.safetensors").write_bytes(b"torn")


def everything(folder: Path) -> None:
    """Run all trainings and write their reports for the test."""
    from r2v.distributed import wait_for_all

    reports: dict[str, Sequence[dict[str, Any]]] = {}
    for what in ("bc", "preference"):
        kept = gradients(what, folder / f"{what}-gradients")
        once = train(what, folder / f"{what}-once", lora=4)
        twice = train(what, folder / f"{what}-twice", lora=4)
        wait_for_all()
        if rank() == 0:
            torch.save(kept, folder / f"{what}.pt")
            cut_short(folder / f"{what}-once", folder / f"{what}-killed")
        wait_for_all()
        reports[what] = (once, twice, train(what, folder / f"{what}-killed", lora=4))
        wait_for_all()
    if rank() == 0:
        (folder / "reports.json").write_text(json.dumps(reports))


def in_parts(folder: Path) -> None:
    """Train full weights and adapters under ZeRO 3, as DeepSpeed does it on a CPU."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    for what, lora in (("bc", 0), ("preference", 4)):
        report = train(what, folder / what, lora=lora, zero=3)
        if rank() == 0:
            (folder / f"{what}.json").write_text(json.dumps(report))


def shard_on_a_cpu() -> None:
    """Patch accelerate, which uses its FSDP plugin on accelerators alone; torch's FSDP2 itself works over gloo."""
    from accelerate import state
    from accelerate.utils import DistributedType

    begin, plugins = state.AcceleratorState.__init__, list[Any]()

    def begun(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        begin(self, *args, fsdp_plugin=fsdp_plugin, **options)
        plugins.extend([] if fsdp_plugin is None else [fsdp_plugin])
        if plugins:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugins[-1]

    state.AcceleratorState.__init__ = begun


def under_fsdp(folder: Path, *names: str) -> None:
    """Train the named cases under FSDP2, once and resumed after a kill; record the size of a rank's part."""
    from torch.distributed.tensor import DTensor

    from r2v.distributed import wait_for_all
    from r2v.policy.training import sharded_training

    shard_on_a_cpu()
    parts: dict[str, float] = {}
    whole_of = sharded_training.gather_model

    def noted(trainer: Any, model: Loaded) -> Loaded:
        weights = list(trainer.model_wrapped.parameters())
        held = sum(w.to_local().numel() if isinstance(w, DTensor) else w.numel() for w in weights)
        parts[Path(trainer.args.output_dir).name] = held / sum(w.numel() for w in weights)
        return whole_of(trainer, model)

    bc.gather_model = preference.gather_model = noted  # type: ignore[attr-defined]
    for case in (case for case in CASES_IN_PARTS if case.name in names):
        once = train(case.what, folder / case.name, fsdp=True, model=read_base(folder / BASE, case, sharded=True))
        wait_for_all()
        if rank() == 0:
            cut_short(folder / case.name, folder / f"{case.name}-killed")
        wait_for_all()
        model = read_base(folder / BASE, case, sharded=True)
        killed = train(case.what, folder / f"{case.name}-killed", fsdp=True, model=model)
        if rank() == 0:
            (folder / f"{case.name}.json").write_text(json.dumps([once, killed, parts]))


TASKS: dict[str, Callable[..., None]] = {"everything": everything, "in_parts": in_parts, "under_fsdp": under_fsdp}


def main() -> None:
    """Run the named task as one of the ranks."""
    join("cpu")
    TASKS[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])


if __name__ == "__main__":
    sys.exit(run_rank(main))
