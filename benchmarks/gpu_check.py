"""What of hierarchical RL and the memory planner is true on this machine's GPU: `make gpu-check`, ten minutes at most.

    python benchmarks/gpu_check.py --out gpu-check           # every part, each with its own limit in seconds
    python benchmarks/gpu_check.py --part numbers --device cpu

Each part runs in a process of its own, leaves its output in OUT/<part>.txt and a line in OUT/summary.txt; a part that
fails stops no other. Nothing is downloaded: models are random weights of a published shape. Exit code 0: all parts that
were run succeeded.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TOTAL_SECONDS = 585
MODEL = "meta-llama/Llama-3.2-1B"
GIB = 2**30
SHORT_TRAINING = (
    "hierarchical.iterations=3 hierarchical.critic.warmup=1 hierarchical.critic.updates=2 hierarchical.episodes=16 "
    "hierarchical.problems.held_out=20 hierarchical.problems.count=100 hierarchical.updates=2"
)
EVERY_ROLE = (
    "seed=2 hierarchical.guidance.baseline=value hierarchical.token_baseline=true hierarchical.critic.draws=1 "
    "hierarchical.advantage=v_of_min hierarchical.gradient_checkpointing=true hierarchical.kl.mode=reward"
)
OFFLOADED = "seed=3 hierarchical.placement=full hierarchical.offload=true"


def machine(device: str) -> None:
    """Versions, and what a CUDA context takes of the GPU before anything is allocated."""
    import torch

    print("torch", torch.__version__, "cuda", torch.version.cuda)
    for name in ("transformers", "peft", "trl", "accelerate", "deepspeed", "bitsandbytes", "safetensors"):
        found = importlib.util.find_spec(name) is not None
        print(name, importlib.metadata.version(name) if found else "absent")
    if device == "cpu":
        return
    total = torch.cuda.get_device_properties(0).total_memory
    free, _ = torch.cuda.mem_get_info()
    print(torch.cuda.get_device_name(), f"{total / GIB:.2f} GiB, context {(total - free) / GIB:.2f} GiB")


def training(device: str, *overrides: str) -> None:
    """The product's own stage with these overrides, every phase, three iterations."""
    from r2v.cli.main import main

    words = [*SHORT_TRAINING.split(), f"policy.device={device}", *overrides]
    with tempfile.TemporaryDirectory() as folder:
        command = ["train_hierarchical", "--config", "configs/hierarchical.yaml", "--output", f"{folder}/result"]
        code = main([*command, "--overrides", *words])
    if code:
        sys.exit(code)


def every_role(device: str) -> None:
    """The same with every optional role and loss at once."""
    training(device, *EVERY_ROLE.split())


def offloaded(device: str) -> None:
    """Full copies, with reference and target network on the CPU."""
    training(device, *OFFLOADED.split())


def numbers(device: str) -> None:
    """Log-probabilities of the same completions by the CPU in float64 and by the GPU in float32 and bfloat16; and a
    probability ratio of 1 before the first update."""
    from r2v.config import load
    from r2v.hrl.algorithm.training_batch import batch_logprobs
    from r2v.hrl.rollout.generator import GenerationRequest, Generator
    from r2v.hrl.training.build import build_trainer

    sizes = ["hierarchical.problems.count=64", "hierarchical.problems.held_out=8", "hierarchical.episodes=16"]
    base = load(REPOSITORY / "configs/hierarchical.yaml", sizes)
    reference = None
    allowed = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.3}
    for where, dtype in (("cpu", "float64"), (device, "float32"), (device, "bfloat16")):
        config = replace(base, policy=replace(base.policy, device=where, dtype=dtype))
        with tempfile.TemporaryDirectory() as folder:
            trainer = build_trainer(config, Path(folder))
            requests = [
                GenerationRequest(prompt=trainer.prompter.answer(problem), key=("g", k), max_tokens=4)
                for problem in trainer.problems[:16]
                for k in range(8)
            ]
            completions = Generator(trainer.roles, "actor").generate(requests)
            reference = reference or completions
            with trainer.roles.using("actor") as model:
                scored = batch_logprobs(model, trainer.roles.device("actor"), reference, 16)
                own = batch_logprobs(model, trainer.roles.device("actor"), completions, 8)
        gap = _largest_gap([list(one.logprobs) for one in reference], scored)
        ratio = _largest_gap([list(one.logprobs) for one in completions], own)
        same = sum(a.tokens == b.tokens for a, b in zip(completions, reference, strict=True)) / len(reference)
        print(
            f"{where} {dtype}: same tokens {same:.3f}, log-prob gap to float64 {gap:.2e}, own ratio off by {ratio:.2e}"
        )
        assert gap < allowed[dtype], gap


def _largest_gap(left: list[list[float]], right: list[list[float]]) -> float:
    pairs = (pair for a, b in zip(left, right, strict=True) for pair in zip(a, b, strict=True))
    return max(abs(x - y) for x, y in pairs)


def rollout(device: str) -> None:
    """Tokens a second and peak memory of the product's own generation, beside what is planned for it."""
    import torch

    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    from hrl_speed import saved

    from r2v.config import HierarchicalConfig, PolicyConfig
    from r2v.hrl.models.roles import build_roles
    from r2v.hrl.rollout.generator import GenerationRequest, Generator
    from r2v.memory.planner.planner import plan_strategy
    from r2v.memory.planner.training_job import Machine, Strategy, TrainingJob
    from r2v.memory.shapes import shape_of, values_of

    with tempfile.TemporaryDirectory() as folder:
        model = saved(values_of(MODEL), Path(folder) / "model", torch.bfloat16)
        policy = PolicyConfig(model_name=str(model), lora_r=16, device=device, dtype="bfloat16")
        roles = build_roles(policy, HierarchicalConfig(), 0)
        for rows, prompt, new in ((64, 256, 128), (64, 512, 256)):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            requests = [
                GenerationRequest(
                    prompt=tuple(5 + (i * 7 + j) % 40 for j in range(prompt)), key=("k", i), max_tokens=new
                )
                for i in range(rows)
            ]
            completions = Generator(roles, "actor", in_flight=rows).generate(requests)
            torch.cuda.synchronize()
            tokens = sum(len(one.tokens) for one in completions) / (time.perf_counter() - begun)
            job = TrainingJob(
                stage="hierarchical",
                model=shape_of(MODEL),
                prompt_tokens=prompt,
                completion_tokens=new,
                episodes=rows,
                hints=1,
                batch=rows,
            )
            planned = plan_strategy(job, Machine(memory=139 * GIB), Strategy(placement="shared"))
            memory = next(one.memory for one in planned.phases if one.phase.name == "rollout, actor")
            allocated, reserved = torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB
            print(
                f"{rows} x ({prompt} + {new}): {tokens:.0f} tokens/s, allocated {allocated:.2f}, "
                f"reserved {reserved:.2f}, planned {memory.total / GIB:.2f} GiB ({memory.peak_at})"
            )


def oom_retry(device: str) -> None:
    """A step that runs out of GPU memory is run again with fewer rows, to the same gradient."""
    import torch

    from r2v.memory.retry_on_oom import retry_on_oom

    free, _ = torch.cuda.mem_get_info()
    filler = torch.empty(int(free - 3 * GIB), dtype=torch.uint8, device=device)  # leaves room for 24 rows of 64
    weight = torch.nn.Parameter(torch.ones(1024, 1024, device=device))
    inputs = torch.randn(64, 256, 1024, device=device)

    def step(rows: int) -> int:
        for begin in range(0, 64, rows):
            row_memory = torch.empty(rows * 96 * 2**20, dtype=torch.uint8, device=device)
            ((inputs[begin : begin + rows] @ weight).square().sum() / 64).backward()
            del row_memory
        return 1

    done = retry_on_oom(step, 64, [weight], phase="actor")
    assert weight.grad is not None
    retried = weight.grad.clone()
    weight.grad = None
    step(1)
    print("rows", done.rows, "largest gradient difference", float((retried - weight.grad).abs().max()))
    assert done.rows < 64 and torch.allclose(retried, weight.grad, rtol=1e-4)
    del filler


def four_bit(device: str) -> None:
    """An nf4 base with two adapters: the loss is finite, and gradients reach one role's adapter alone."""
    import torch

    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    from hrl_speed import saved

    from r2v.config import HierarchicalConfig, PolicyConfig
    from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
    from r2v.hrl.models.roles import build_roles
    from r2v.memory.shapes import values_of

    if importlib.util.find_spec("bitsandbytes") is None:
        print("bitsandbytes is absent: not shown")
        return
    with tempfile.TemporaryDirectory() as folder:
        model = saved(values_of(MODEL), Path(folder) / "model", torch.bfloat16)
        policy = PolicyConfig(model_name=str(model), lora_r=16, device=device, load_in_4bit=True)
        roles = build_roles(policy, HierarchicalConfig(), 0)
        torch.cuda.reset_peak_memory_stats()
        static = torch.cuda.memory_allocated()
        batch = pad_sequences([list(range(5, 261))] * 4, [list(range(5, 69))] * 4, device=device)
        with roles.using("actor") as actor:
            loss = -completion_logprobs(actor, batch).mean()
            loss.backward()
        assert all(p.grad is not None for p in roles.parameters("actor"))
        assert all(p.grad is None for p in roles.parameters("guidance"))
        print(
            f"loss {float(loss):.4f}, static {static / GIB:.2f}, peak {torch.cuda.max_memory_allocated() / GIB:.2f} GiB"
        )


PARTS: dict[str, tuple[int, Callable[[str], None]]] = {
    "machine": (20, machine),
    "training": (60, training),
    "every-role": (45, every_role),
    "offloaded": (45, offloaded),
    "numbers": (60, numbers),
    "rollout": (70, rollout),
    "oom-retry": (40, oom_retry),
    "four-bit": (60, four_bit),
}
"""Parts of this module, with their limits in seconds."""
PROGRAMS = {
    "planner-grid": (70, ["benchmarks/planner.py", "--cuda"]),
    "planner-large": (110, ["benchmarks/planner.py", "--cuda", "--large", "--only", "llama", "--drawn", "0"]),
    "speed-beside-trl": (
        100,
        [
            "benchmarks/hrl_speed.py",
            "--cuda",
            "--model",
            MODEL,
            "--prompts",
            "16",
            "--samples",
            "4",
            "--completion",
            "128",
            "--rounds",
            "2",
        ],
    ),
}
"""Other benchmarks that are part of the check, with their limits in seconds."""


def run_all(out: Path, device: str) -> int:
    """Run every part, each in a process of its own; returns 1 where one failed."""
    out.mkdir(parents=True, exist_ok=True)
    begun, lines, failed = time.monotonic(), list[str](), False
    own = {name: (limit, [__file__, "--part", name, "--device", device]) for name, (limit, _) in PARTS.items()}
    for name, (limit, words) in {**own, **PROGRAMS}.items():
        left = TOTAL_SECONDS - (time.monotonic() - begun)
        if left < 8:
            lines.append(f"{name} skipped: no time left")
            continue
        started = time.monotonic()
        with (out / f"{name}.txt").open("w") as log:
            try:
                command = [sys.executable, *words]
                code: int | str = subprocess.run(
                    command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, timeout=min(limit, left)
                ).returncode
            except subprocess.TimeoutExpired:
                code = "over its limit"
        failed = failed or code != 0
        lines.append(f"{name} exit {code}, {time.monotonic() - started:.0f} s of {limit}")
        print(lines[-1], flush=True)
    (out / "summary.txt").write_text("\n".join(lines) + "\n")
    return int(failed)


def main() -> int:
    """Run one part here, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), metavar="DIR", help="default: gpu-check")
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help="cuda, or cpu for the parts that can")
    parser.add_argument("--part", choices=PARTS, help="run this part alone, in this process")
    arguments = parser.parse_args()
    if arguments.part:
        PARTS[arguments.part][1](arguments.device)
        return 0
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: torch sees no CUDA device here; run it on a machine with a GPU", file=sys.stderr)
        return 5
    return run_all(arguments.out, arguments.device)


if __name__ == "__main__":
    sys.exit(main())
