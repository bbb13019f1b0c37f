"""The memory planner's peaks against whole models run on tensors without data: error of each case, median, worst.

    python benchmarks/planner.py                             # the cases of tests/memory/guard.json
    python benchmarks/planner.py --only rollout --cuda       # on a GPU: torch.cuda.max_memory_allocated
    python benchmarks/planner.py --families                  # 14 families: LoRA, full, checkpointed, 4-bit
    python benchmarks/planner.py --all-families              # every causal type of transformers: planned or refused
    python benchmarks/planner.py --write-guard               # the planner's answers next to the formulas'
    python benchmarks/planner.py --ship                      # r2v/memory/shipped: all shipped configurations

The planner extrapolates from shallow models at small shapes; a whole run takes the model's own depth at the requested
shape. `guard.json` holds the answers of the earlier formulas for its grid, its 6 large cases and 20 drawn ones; the 40
cases that were measured on an H200 are the grid and the first four of the large ones. The peer is the usual rule of
thumb for such sizes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from r2v.errors import R2VError, UsageError
from r2v.memory import store
from r2v.memory.measured.child import answer
from r2v.memory.measured.extrapolation import measure
from r2v.memory.measured.rehearsal import FixedShape, rehearse, rehearse_on_gpu
from r2v.memory.measurement import MeasuredCase, MeasuredMemory
from r2v.memory.model_registry import MODEL_CONFIGS, ModelConfigValues
from r2v.memory.models import KnownModel, known_model
from r2v.memory.planner.phases import case_of, phase_memory
from r2v.memory.planner.planner import plan
from r2v.memory.planner.roles import Device, MemoryPhase, devices
from r2v.memory.planner.training_job import Machine, Strategy, TrainingJob
from r2v.memory.report import report, stages_report
from r2v.pipeline.jobs import JOBS, job

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
GUARD = ROOT / "tests/memory/guard.json"
SHIPPED = ROOT / "r2v/memory/shipped"
_WHOLE = 1 << 16
"""A chunk of any number of tokens."""
_LAYERS = 8
"""Depth of a type of which only is asked if it can be planned."""
_LONGEST = 120
"""CPU seconds for a type: some have loops over single tokens."""
_OTHER_CONFIGS = ("experiments", "greedy", "mlp")
"""Folders of configs/ that hold experiments, not stage configurations."""
LARGEST = {
    "tiny": "tiny",
    "lora-0.5b": "Qwen/Qwen3-0.6B",
    "lora-1b": "meta-llama/Llama-3.2-3B",
    "lora-8b": "microsoft/phi-4",
    "qlora-8b": "Qwen/Qwen3-14B",
    "full-1b": "meta-llama/Llama-3.2-3B",
}
"""Profile to its largest intended model, or one near that size."""
_STRETCHES = ("fresh", "accumulated", "step", "read", "prompt", "copied", "choose", "token", "last choose")


def lookup(case: MeasuredCase) -> MeasuredMemory:
    """Return the measurement of a case, made in this process and kept while it lasts."""
    return _by_text(json.dumps(vars(case)))


@cache
def _by_text(text: str) -> MeasuredMemory:
    return measure(MeasuredCase(**json.loads(text)))


def model_of(values: ModelConfigValues, name: str = "model") -> KnownModel:
    """Return a model by its config.json."""
    from r2v.memory.measured.extrapolation import sizes_of

    return KnownModel(name=name, values=values, sizes=sizes_of(values))


@dataclass(frozen=True, kw_only=True)
class GuardCase:
    """One phase of one training strategy on one GPU, as guard.json describes it."""

    phase: str
    model: ModelConfigValues
    critic: ModelConfigValues | None
    lora_rank: int
    precision: Any
    optimizer: Any
    checkpoint: bool
    chunk: int | None
    micro_batch: int
    tokens: int
    micro_batches: int

    @property
    def name(self) -> str:
        """The case in a few words."""
        how = f"lora {self.lora_rank}" if self.lora_rank else "full"
        words = [self.phase, self.model["model_type"], f"h{self.model['hidden_size']}", how, self.precision]
        words += [f"{self.micro_batch}x{self.tokens}", "ckpt" if self.checkpoint else ""]
        words += ["naive" if self.chunk is None else "", "" if self.optimizer == "adamw" else self.optimizer]
        return " ".join(filter(None, words))

    def planned(self) -> tuple[TrainingJob, Strategy, Device, MemoryPhase]:
        """Return the case as a phase of a training job; nearly every token is predicted."""
        stage: Any = self.phase if self.phase in ("bc", "verifier") else "hierarchical"
        completion = 1 if self.phase == "rollout" else self.tokens - 1
        training = TrainingJob(
            stage=stage,
            code=job(stage).memory,
            model=model_of(self.model),
            critic=model_of(self.critic) if self.critic else None,
            lora_rank=self.lora_rank,
            precision=self.precision,
            optimizer=self.optimizer,
            prompt_tokens=self.tokens - completion,
            completion_tokens=completion,
            critic_tokens=self.tokens,
            batch=self.micro_batch * self.micro_batches,
        )
        shared = stage == "hierarchical" and self.lora_rank
        strategy = Strategy(placement="shared" if shared else "full", checkpoint=self.checkpoint)
        critics = {"critic": lookup(_critic(training)).trained} if self.critic else {}
        device = devices(training, strategy, 1, critics)[0]
        name = "rollout, actor" if self.phase == "rollout" else self.phase
        return training, strategy, device, next(phase for phase in device.phases if phase.name == name)

    def case(self) -> MeasuredCase:
        """Return the case for measurement, with its own chunks."""
        training, strategy, _, phase = self.planned()
        case = case_of(training, strategy, phase, self.micro_batch)
        return self.chunked(case)

    def chunked(self, case: MeasuredCase) -> MeasuredCase:
        """Return the case with this one's chunks if it belongs to hierarchical training."""
        if not case.chunk or self.phase == "bc":
            return case
        chunk = self.chunk or _WHOLE
        return replace(case, chunk=chunk, single_chunk=self.micro_batch * (self.tokens - 1) <= chunk)

    def peak(self) -> tuple[float, str]:
        """Return the planner's peak in bytes, and the operation at the peak."""
        memory = phase_memory(*self.planned(), self.micro_batch, lambda case: lookup(self.chunked(case)))
        return memory.total, memory.peak_at

    def whole(self, run: Callable[[MeasuredCase, FixedShape], float]) -> float:
        """Return the bytes of the whole model at the shape, the phase's own model alone."""
        predicted = self.tokens - 1 if self.case().completions else self.tokens
        return run(self.case(), FixedShape(rows=self.micro_batch, tokens=self.tokens, predicted=predicted))

    def alone(self) -> float:
        """Return the planner's answer for the phase's own model alone."""
        measured = lookup(self.case())
        predicted = self.micro_batch * (self.tokens - 1 if self.case().completions else self.tokens)
        peak = measured.peak(_STRETCHES, rows=self.micro_batch, tokens=self.tokens, predicted=predicted)
        trains = any(moment.stretch == "step" for moment in measured.moments)
        return peak.size + measured.weights + (2 * measured.trained_bytes if trains else 0)


def _critic(training: TrainingJob) -> MeasuredCase:
    assert training.critic is not None
    return MeasuredCase(code=training.code, action="train", role="critic", model=training.critic.values)


def guard_cases() -> Iterator[tuple[GuardCase, dict[str, Any]]]:
    """Yield the cases of guard.json, each with its record."""
    guard = json.loads(GUARD.read_text())
    fields = GuardCase.__dataclass_fields__
    for record in guard["cases"]:
        values = {name: record[name] for name in fields}
        models = {name: None if values[name] is None else guard["models"][values[name]] for name in ("model", "critic")}
        yield GuardCase(**values | models), record


def write_guard() -> None:
    """Add the planner's answers to guard.json, as `measured` next to the formulas' `peak`."""
    guard = json.loads(GUARD.read_text())
    rows = []
    for case, record in guard_cases():
        size, at = case.peak()
        record |= {"measured": round(size), "measured_at": at}
        rows.append(json.dumps(record))
        print(f"{size / record['peak'] - 1:+8.2%}  {record['peak'] / MIB:9.1f}  {case.name}: {at}", flush=True)
    tables = ",\n  ".join(json.dumps(values) for values in guard["models"])
    lines = ",\n  ".join(rows)
    GUARD.write_text(f'{{"models": [\n  {tables}\n], "cases": [\n  {lines}\n]}}\n')


_SIZES: ModelConfigValues = {
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 8192,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
FAMILIES: dict[str, ModelConfigValues] = {
    **dict.fromkeys(
        ("llama", "qwen2", "mistral", "olmo2", "granite", "starcoder2", "cohere", "ernie4_5", "smollm3"), _SIZES
    ),
    "qwen3": _SIZES | {"head_dim": 32},
    "phi": _SIZES,
    "gemma2": _SIZES | {"head_dim": 32},
    "gemma3_text": _SIZES | {"head_dim": 32},
    "mixtral": _SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
}
"""A model of 12 layers of each family."""
_WAYS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 16, "frozen": True, "width": 2},
    "full": {},
    "checkpointed": {"rank": 16, "frozen": True, "width": 2, "checkpoint": True},
    "4-bit": {"rank": 16, "frozen": True, "four_bit": True},
}


def families() -> None:
    """Compare planner and whole model for each family and way of training, 8 rows of 512 tokens."""
    errors = []
    for family, values in FAMILIES.items():
        for way, how in _WAYS.items():
            case = MeasuredCase(
                code=job("bc").memory, action="train", model={"model_type": family, **values}, chunk=4096,
                single_chunk=True, **how,
            )  # fmt: skip
            try:
                measured, shape = lookup(case), FixedShape(rows=8, tokens=512, predicted=512)
            except R2VError as error:
                print(f"{family:12} {way:13} refused: {error}", flush=True)
                continue
            run = rehearse(case, shape)
            predicted = measured.peak(_STRETCHES, rows=8, tokens=512).size + run.static
            errors.append(predicted / run.peak - 1)
            print(f"{family:12} {way:13} {run.peak / MIB:9.1f} MiB {errors[-1]:+9.4%}", flush=True)
    _print_errors("planner", errors)


def all_families(only: str) -> None:
    """Plan each causal language model of transformers: its default configuration, cut to `_LAYERS` layers and cloned
    with adapters."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    types = [name for name, kind in CONFIG_MAPPING.items() if kind in MODEL_FOR_CAUSAL_LM_MAPPING and only in name]
    verdicts = []
    for name in types:
        verdicts.append(in_a_child(name))
        print(f"{name}: {verdicts[-1]}", flush=True)
    print(f"{sum(verdict.startswith('planned') for verdict in verdicts)} of {len(types)} types planned")


def in_a_child(name: str) -> str:
    """Return the verdict on a type of models, in a process of its own: a library may loop over tokens, or abort."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def answer() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (_LONGEST, _LONGEST))
        theirs.send(planned_or_refused(name))

    child = context.Process(target=answer)
    child.start()
    theirs.close()
    try:
        return str(ours.recv())
    except EOFError:
        child.join()
        if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"refused: not measured within {_LONGEST} CPU-s"
        return f"refused: its process ended with {child.exitcode}"


def planned_or_refused(name: str) -> str:
    """Return the planner's answer for a type of models in one line."""
    try:
        case = MeasuredCase(
            code=job("bc").memory, action="train", model=_shallow(name), rank=16, frozen=True, width=2, chunk=4096,
            single_chunk=True,
        )  # fmt: skip
        peak = measure(case).peak(_STRETCHES, rows=1, tokens=1024)
    except R2VError as error:
        return f"refused: {error}"
    return f"planned, {peak.size / MIB:.0f} MiB beside its weights at {peak.at}"


def _shallow(name: str) -> ModelConfigValues:
    """Return a type's default configuration with fewer layers. Raises UsageError if it has no defaults."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(name)
        text = config.get_text_config()
    except (AttributeError, ImportError, TypeError, ValueError, StrictDataclassError) as error:
        raise UsageError(f"its configuration has no defaults ({str(error).splitlines()[0]})") from error
    depth = {"num_hidden_layers": _LAYERS}
    return {"model_type": name} | (depth if text is config else {"text_config": depth})


_OVERRIDDEN = (
    ("policy.model_name=meta-llama/Llama-3.2-1B-Instruct", "policy.lora_r=16", "hierarchical.enabled=true"),
    ("policy.model_name=meta-llama/Llama-3.1-8B", "policy.lora_r=16"),
    ("policy.model_name=Qwen/Qwen2.5-14B", "training.lr=1e-5"),
)
"""Command-line overrides that are measured in addition to the files."""
_DOCUMENTED: tuple[tuple[str, str, dict[str, Any], tuple[float, ...], int], ...] = (
    ("hierarchical", "Llama-3.2-3B", {}, (24, 44.53, 141), 1),
    ("hierarchical", "Llama-3.2-3B", {"lora_rank": 0, "precision": "float32", "value": True}, (44.53,), 2),
    ("hierarchical", "Llama-3.2-3B", {"lora_rank": 0, "precision": "float32", "value": True}, (80,), 8),
    ("hierarchical", "Llama-3.2-3B", {"lora_rank": 0, "precision": "mixed"}, (400,), 8),
    ("hierarchical", "Llama-3.1-8B", {"four_bit": True}, (44.53,), 1),
    ("hierarchical", "Llama-3.1-70B", {}, (44.53, 70), 1),
    ("hierarchical", "Llama-3.2-1B", {"lora_rank": 0, "precision": "float32"}, (20, 36.5, 48), 1),
    *(("bc", name, {}, (24, 80), 1) for name in ("Qwen2.5-0.5B", "Llama-3.2-3B")),
    *(
        (stage, "Qwen2.5-0.5B", {"lora_rank": rank}, (24,), 1)
        for stage in ("preference", "verifier")
        for rank in (0, 16)
    ),
    ("bc", "Qwen2.5-0.5B", {"lora_rank": 0}, (24,), 1),
    ("bc", "Llama-3.2-3B", {"lora_rank": 0}, (141,), 8),
    *(
        (stage, "Llama-3.2-1B", {"lora_rank": 0, "precision": "float32"}, (8, 12, 16, 20, 24), 1)
        for stage in ("bc", "preference", "verifier")
    ),
)
"""Training jobs that the documentation plans: stage, model, fields, sizes of the GPU in GiB, GPUs."""


class Shipping:
    """Measures in this process, and stores cases that the package lacks in its own folder, one file per model."""

    def __call__(self, case: MeasuredCase | ModelConfigValues) -> dict[str, Any]:
        result, values = answer(case), case.model if isinstance(case, MeasuredCase) else case
        key = case.key if isinstance(case, MeasuredCase) else store.sizes_key(case)
        text = values.get("text_config") or values
        path = SHIPPED / f"{values['model_type']}-{text.get('hidden_size', '')}x{text['num_hidden_layers']}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        lines = [
            f"{json.dumps(case_key)}: {json.dumps(record)}"
            for case_key, record in sorted({**before, key: result}.items())
        ]
        path.parent.mkdir(exist_ok=True)
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return result


def ship() -> None:
    """Measure the cases of the shipped configurations and the documentation, and the sizes of all registered models."""
    from r2v.config import load
    from r2v.config.profiles import PROFILES
    from r2v.memory.profile_of_model import configured
    from r2v.memory.report import plan_stages

    os.chdir(tempfile.mkdtemp())  # a store of this run alone
    measure = Shipping()
    lookup = partial(store.measurement, measure=measure)
    for name, values in MODEL_CONFIGS.items():
        store.sizes(values, name, measure)
    for stage, name, fields, sizes, gpus in _DOCUMENTED:
        for size in sizes:
            _documented(stage, name, fields, size, gpus, measure)
        print(stage, name, fields, flush=True)
    files = [path for path in sorted((ROOT / "configs").rglob("*.yaml")) if path.parent.name not in _OTHER_CONFIGS]
    configs = [configured(path) for path in files] + [
        load(None, [f"profile={name}", f"policy.model_name={LARGEST[name]}"]) for name in PROFILES if name in LARGEST
    ]
    configs += [load(None, list(overrides)) for overrides in _OVERRIDDEN]
    for config in configs:
        if config.policy.is_api:
            continue
        for size in (24, 80, 141):
            machine = Machine(memory=size * 2**30)
            stages = {row.name: (row.memory, machine) for row in JOBS if row.enabled(config)}
            planned = plan_stages(config, stages, measure, lookup)
            stages_report(config, planned)
        print(config.policy.model_name, flush=True)


def _documented(stage: Any, name: str, fields: dict[str, Any], size: float, gpus: int, measure: store.Measure) -> None:
    critic = known_model("FacebookAI/roberta-base", measure) if stage == "hierarchical" else None
    training = TrainingJob(
        stage=stage, code=job(stage).memory, model=known_model(name, measure), critic=critic, **fields
    )
    report(plan(training, Machine(memory=size * 2**30, gpus=gpus), partial(store.measurement, measure=measure)))


def _print_errors(name: str, errors: list[float]) -> None:
    sizes = [abs(error) for error in errors]
    print(
        f"{name}: {len(errors)} cases, median {statistics.median(sizes):.3%}, worst {max(sizes):.3%}, most under "
        f"{-min(0, *errors):.3%}"
    )


def rule_of_thumb(case: GuardCase) -> float:
    """Return the bytes of activations by formula: 2 (12 h + 2 kv + 4 I) per token and layer (checkpointed: 1.3 * 2 h,
    and one whole layer), and 8 V per token, of one chunk if there are chunks."""
    values, tokens = case.model, case.micro_batch * case.tokens
    hidden, layers = values["hidden_size"], values["num_hidden_layers"]
    keys = values["num_key_value_heads"] * (values.get("head_dim") or hidden // values["num_attention_heads"])
    layer = 2 * (12 * hidden + 2 * keys + 4 * values["intermediate_size"])
    saved = 2.6 * hidden * layers + layer if case.checkpoint else layer * layers
    return float(tokens * saved + 8 * values["vocab_size"] * min(tokens, case.chunk or tokens))


def compare(only: str, cuda: bool) -> None:
    """Compare the planner and the rule of thumb with whole runs of the guard's cases."""
    import torch

    def whole(case: MeasuredCase, shape: FixedShape) -> float:
        return rehearse(case, shape).peak

    if cuda:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    errors, peers, start = [], [], time.process_time()
    for case, _ in guard_cases():
        if only not in case.name:
            continue
        predicted = case.alone()
        try:
            seen = case.whole(rehearse_on_gpu if cuda else whole)
        except torch.OutOfMemoryError:
            print(f"{predicted / MIB:10.1f}       larger than this GPU: {case.name}")
            continue
        measured = lookup(case.case())
        state = measured.weights + 3 * measured.trained_bytes
        errors.append(predicted / seen - 1)
        peers.append((rule_of_thumb(case) + state) / seen - 1)
        print(
            f"{predicted / MIB:10.1f} {seen / MIB:10.1f} {errors[-1]:+9.3%} {peers[-1]:+8.0%}  {case.name}", flush=True
        )
    _print_errors("planner", errors)
    _print_errors("rule of thumb", peers)
    print(f"{time.process_time() - start:.0f} CPU-s")


def main() -> int:
    """Run the comparison that the options select."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--only", default="", help="cases whose name holds this")
    options.add_argument("--cuda", action="store_true", help="measure on this machine's GPU")
    for name in ("--families", "--all-families", "--write-guard", "--ship"):
        options.add_argument(name, action="store_true")
    values = options.parse_args()
    if values.cuda:
        import torch

        if not torch.cuda.is_available():
            print("no GPU here: nothing was measured; run the same command where torch.cuda.is_available()")
            return 0
    if values.families:
        families()
    elif values.all_families:
        all_families(values.only)
    elif values.write_guard:
        write_guard()
    elif values.ship:
        ship()
    else:
        compare(values.only, values.cuda)
    return 0


if __name__ == "__main__":
    sys.exit(main())
