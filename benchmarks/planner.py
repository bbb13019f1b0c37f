"""The planner's peaks against those of the real libraries on tensors without data: error of each case, median, worst.

    python benchmarks/planner.py
    python benchmarks/planner.py --large                     # shapes of real models too: more time, no more memory
    python benchmarks/planner.py --only none --drawn 20      # cases drawn by chance instead
    python benchmarks/planner.py --cuda --large              # on a GPU, random weights: torch.cuda.max_memory_allocated
    python benchmarks/planner.py --write-guard               # the planner's answers, as tests/memory/guard.json

The judge is r2v/memory/tracker/tracker.py (torch's own MemTracker does not run with adapters), and what it judges is
the step
of r2v/memory/tracker/fake_tensor_run.py on real transformers, peft and AdamW. The planner's rules were made while
looking at the
grid, not at the drawn cases. The peer on the same cases is the rule of thumb that such sizes are mostly reckoned by;
it is given the planner's own state of every role.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from r2v.memory.model_registry import MODEL_CONFIGS, ModelConfigValues
from r2v.memory.shapes import from_config
from r2v.memory.sizes import GIB
from r2v.memory.tracker.fake_tensor_run import run_fake, run_on_gpu
from r2v.memory.tracker.phase_case import PhaseCase, planned, state_of
from r2v.randomness import generator

MIB = 2**20
GUARD = Path(__file__).resolve().parents[1] / "tests/memory/guard.json"
SMALL: ModelConfigValues = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 8192,
    "tie_word_embeddings": True,
}
WIDE = SMALL | {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "intermediate_size": 1408,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
READER: ModelConfigValues = {
    "model_type": "roberta",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 5000,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}


def grid() -> list[PhaseCase]:
    """Two sizes, adapters and full training, checkpointing on and off, batch and length, three precisions, every
    phase."""
    actor = PhaseCase(phase="actor", model=SMALL, critic=READER)
    full = replace(actor, lora_rank=0, precision="float32")
    families: dict[str, dict[str, object]] = {
        "qwen2": {},
        "qwen3": {"head_dim": 32},
        "mistral": {},
        "lfm2": {"block_auto_adjust_ff_dim": False, "conv_L_cache": 3, "layer_types": ["conv", "full_attention"] * 3},
    }
    return [
        *(
            replace(actor, model=model, checkpoint=again, micro_batch=micro_batch, tokens=tokens)
            for model in (SMALL, WIDE)
            for again in (False, True)
            for micro_batch, tokens in ((4, 128), (8, 384))
        ),
        *(
            replace(full, checkpoint=again, micro_batch=micro_batch, tokens=tokens)
            for again in (False, True)
            for micro_batch, tokens in ((4, 128), (8, 384))
        ),
        replace(full, micro_batch=1, tokens=16),
        replace(full, optimizer="adamw_fused", micro_batch=1, tokens=16),
        replace(full, model=WIDE, precision="bfloat16", micro_batch=8, tokens=256),
        *(replace(actor, precision="mixed", checkpoint=again, micro_batch=8, tokens=256) for again in (False, True)),
        *(replace(full, precision="mixed", checkpoint=again, micro_batch=8, tokens=256) for again in (False, True)),
        replace(actor, phase="guidance", micro_batch=6, tokens=200),
        replace(actor, phase="reference", micro_batch=16, tokens=256),
        replace(actor, phase="rollout", micro_batch=32, tokens=256),
        replace(full, phase="rollout", micro_batch=8, tokens=512),
        replace(actor, phase="critic", micro_batch=8, tokens=256),
        replace(full, phase="critic", micro_batch=2, tokens=64),
        replace(actor, phase="bc", chunk=None, critic=None, micro_batch=4, tokens=256),
        replace(full, phase="bc", chunk=None, critic=None, micro_batch=4, tokens=256, micro_batches=1),
        *(
            replace(
                actor,
                phase="bc",
                chunk=None,
                critic=None,
                lora_rank=rank,
                precision="mixed",
                checkpoint=again,
                micro_batch=8,
                tokens=256,
            )
            for rank in (0, 16)
            for again in (False, True)
        ),
        replace(actor, phase="verifier", critic=None, micro_batch=8, tokens=256),
        *(
            replace(actor, model=SMALL | {"model_type": family} | more, micro_batch=8, tokens=256)
            for family, more in families.items()
        ),
    ]


def large() -> list[PhaseCase]:
    """The same at the sizes that jobs ask GPUs for."""
    actor = PhaseCase(
        phase="actor",
        model=MODEL_CONFIGS["meta-llama/Llama-3.2-3B"],
        critic=MODEL_CONFIGS["FacebookAI/roberta-base"],
        micro_batch=8,
        tokens=1024,
    )
    return [
        actor,
        replace(actor, checkpoint=True),
        replace(actor, checkpoint=True, chunk=None),
        replace(actor, precision="mixed", checkpoint=True),
        replace(actor, phase="critic", micro_batch=16, tokens=512),
        replace(actor, phase="bc", lora_rank=0, precision="float32", micro_batch=1, critic=None),
    ]


def drawn(count: int, seed: int) -> list[PhaseCase]:
    """Cases that nobody chose, so none the planner's rules were made with."""
    return [_drawn(generator(seed, "planner", at)) for at in range(count)]


def _drawn(draw: random.Random) -> PhaseCase:
    heads, width = draw.choice([4, 6, 8, 12]), draw.choice([16, 32, 64])
    model = SMALL | {
        "model_type": draw.choice(["llama", "qwen2", "mistral"]),
        "hidden_size": heads * width,
        "num_hidden_layers": draw.randint(2, 10),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([1, 2, heads]),
        "intermediate_size": 32 * draw.randint(8, 60),
        "vocab_size": draw.randint(1000, 50000),
        "tie_word_embeddings": draw.random() < 0.5,
    }
    return PhaseCase(
        phase=draw.choice(["actor", "actor", "guidance", "critic", "reference", "rollout"]),
        model=model,
        critic=READER,
        lora_rank=draw.choice([0, 4, 16, 64]),
        precision=draw.choice(["float32", "bfloat16", "mixed"]),
        checkpoint=draw.random() < 0.5,
        chunk=draw.choice([None, 256, 1024]),
        micro_batch=draw.randint(1, 12),
        tokens=draw.randint(16, 400),
        micro_batches=draw.choice([1, 2]),
    )


def guard_cases() -> list[PhaseCase]:
    """The cases whose answers are kept: the grid, the large ones, and 20 drawn with seed 0. The 40 that were measured
    on an H200 are the grid and the first four of the large ones."""
    return [*grid(), *large(), *drawn(20, 0)]


def write_guard(path: Path) -> None:
    """Write the peak in bytes that the planner predicts for each of `guard_cases`. Models stand in a table of their
    own, for many cases share one."""
    models: list[ModelConfigValues] = []
    lines = []
    for case in guard_cases():
        values = {field.name: getattr(case, field.name) for field in fields(case)}
        for role in ("model", "critic"):
            if values[role] is not None:
                if values[role] not in models:
                    models.append(values[role])
                values[role] = models.index(values[role])
        memory = planned(case)
        lines.append(json.dumps({**values, "peak": round(memory.total), "peak_at": memory.peak_at}))
    tables = ",\n  ".join(json.dumps(values) for values in models)
    rows = ",\n  ".join(lines)
    path.write_text(f'{{"models": [\n  {tables}\n], "cases": [\n  {rows}\n]}}\n')


def rule_of_thumb(case: PhaseCase) -> float:
    """Bytes by formula: the state of every role, 2 (12 h + 2 kv + 4 I) a token and
    layer (checkpointed: 1.3 * 2 h, and one whole layer), and 8 V a token, of a chunk where there are chunks."""
    shape, tokens = from_config(case.model), case.micro_batch * case.tokens
    layer = 2 * (12 * shape.hidden + 2 * shape.kv_heads * shape.head_dim + 4 * shape.inner)
    layers = 2.6 * shape.hidden * len(shape.kinds) + layer if case.checkpoint else layer * len(shape.kinds)
    return state_of(case) + tokens * layers + 8 * shape.vocab * min(tokens, case.chunk or tokens)


def named(case: PhaseCase) -> str:
    """A case in a few words."""
    shape = from_config(case.model)
    how = f"lora {case.lora_rank}" if case.lora_rank else "full"
    words = [
        case.phase,
        shape.family,
        f"h{shape.hidden}",
        how,
        case.precision,
        f"{case.micro_batch}x{case.tokens}",
        "ckpt" if case.checkpoint else "",
        "naive" if case.chunk is None else "",
        "" if case.optimizer == "adamw" else case.optimizer,
    ]
    return " ".join(word for word in words if word)


def _on_gpu() -> Callable[[PhaseCase], int | None] | None:
    """What measures a case, None where it does not fit; None where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")

    def judge(case: PhaseCase) -> int | None:
        torch.cuda.empty_cache()
        try:
            return run_on_gpu(case)
        except torch.OutOfMemoryError:
            return None

    return judge


def main() -> int:
    """Print a line for each case, then the summary."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--large", action="store_true")
    options.add_argument("--only", default="", help="cases whose name holds this")
    options.add_argument("--drawn", type=int, default=0, metavar="N", help="this many random cases as well")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--cuda", action="store_true", help="measure on this machine's GPU instead of tracking")
    options.add_argument("--write-guard", action="store_true", help="write the planner's answers, and measure nothing")
    values = options.parse_args()
    if values.write_guard:
        write_guard(GUARD)
        return 0
    judge = _on_gpu() if values.cuda else lambda case: run_fake(case).size
    if judge is None:
        print("no GPU here: nothing was measured; run the same command where torch.cuda.is_available()")
        return 0
    cases = [case for case in [*grid(), *(large() if values.large else [])] if values.only in named(case)]
    cases += drawn(values.drawn, values.seed)
    errors, peers, start = [], [], time.process_time()
    print(f"{'predicted':>10} {'measured' if values.cuda else 'tracked':>10} {'error':>8} {'rule':>10}  (MiB)  case")
    for case in cases:
        said, seen = planned(case), judge(case)
        if seen is None:
            print(f"{said.total / MIB:10.1f}       larger than this GPU: {named(case)}")
            continue
        errors.append(said.total / seen - 1)
        peers.append(rule_of_thumb(case) / seen - 1)
        print(
            f"{said.total / MIB:10.1f} {seen / MIB:10.1f} {errors[-1]:+8.2%} {peers[-1]:+10.0%}         "
            f"{named(case)}: {said.peak_at}",
            flush=True,
        )
    for what, found in () if not errors else (("planner", errors), ("rule of thumb", peers)):
        sizes = [abs(error) for error in found]
        print(
            f"{what}: {len(found)} cases, median {statistics.median(sizes):.2%}, worst {max(sizes):.2%}, "
            f"most under {-min(0, *found):.2%}"
        )
    print(
        f"{time.process_time() - start:.0f} CPU-s; peaks of {len(errors)} cases, the largest planned "
        f"{max(planned(case).total for case in cases) / GIB:.1f} GiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
