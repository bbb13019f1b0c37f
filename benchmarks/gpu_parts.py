"""Parts of `make gpu-check`: functions of the device that print their measurements and fail by an assertion.

`NEEDS` names the packages that a part requires; without them `gpu_check.py` skips the part and names it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

REPOSITORY = Path(__file__).parents[1]
MICRO = REPOSITORY / "tests/micro.yaml"
MODEL = "meta-llama/Llama-3.2-1B"
PUPIL = "HuggingFaceTB/SmolLM2-135M"
GIB = 2**30
SHORT_TRAINING = (
    "hierarchical.iterations=3 hierarchical.critic.warmup=1 hierarchical.critic.updates=2 hierarchical.episodes=16 "
    "hierarchical.problems.held_out=20 hierarchical.problems.count=100 hierarchical.updates=2"
)
EVERY_ROLE = (
    "seed=2 hierarchical.guidance.baseline=value hierarchical.token_baseline=true hierarchical.critic.draws=1 "
    "hierarchical.advantage=v_of_min hierarchical.gradient_checkpointing=true hierarchical.kl.mode=reward"
)
ADAPTERS = (
    "policy.lora_r=16 policy.max_seq_len=1024 training.lr=1e-3 training.bc.max_examples=60 training.num_epochs=1 "
    "inference.max_new_tokens=16 candidates.num_folds=2 rollout.batch_size=64"
)
STAGES = {
    "collect": [],
    "perturb": [],
    "train_policy": ["--stage", "bc"],
    "train_verifier": ["verifier.num_tasks=6", "candidates.num_folds=2"],
    "evaluate": ["--methods", "slm_base", "llm_only", "policy.model_name=outputs/micro/policy/bc/final"],
}
"""Stages that are run one by one, with their options and settings."""
SMALL_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
}
"""Values of the published shape that are reduced on a CPU."""
OFFLOADED = "seed=3 hierarchical.placement=full hierarchical.offload=true"


def machine(device: str) -> None:
    """Versions, and the GPU memory of a CUDA context before anything is allocated."""
    import torch

    print("torch", torch.__version__, "cuda", torch.version.cuda)
    for name in ("transformers", "peft", "trl", "accelerate", "deepspeed", "bitsandbytes", "safetensors"):
        installed = importlib.util.find_spec(name) is not None
        print(name, importlib.metadata.version(name) if installed else "absent")
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


def full_weights(device: str) -> None:
    """All weights of a model large enough for bfloat16 autocast, three copies of it."""
    import torch

    from benchmarks.hrl_speed import saved
    from r2v.memory.models import values_of

    with tempfile.TemporaryDirectory() as folder:
        values = {**values_of(PUPIL), **(SMALL_LLAMA if device == "cpu" else {})}
        model = saved(values, Path(folder) / "model", torch.float32)
        training(device, f"policy.model_name={model}", "policy.lora_r=0", "policy.dtype=bfloat16")


def placements(device: str) -> None:
    """The same as it is, with every optional role and loss at once, and with reference and target network on the
    CPU."""
    for overrides in ("", EVERY_ROLE, OFFLOADED):
        training(device, *overrides.split())


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
    runs: tuple[tuple[str, Literal["float64", "float32", "bfloat16"]], ...] = (
        ("cpu", "float64"),
        (device, "float32"),
        (device, "bfloat16"),
    )
    for where, dtype in runs:
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
        gap = _largest_gap([list(completion.logprobs) for completion in reference], scored)
        ratio = _largest_gap([list(completion.logprobs) for completion in completions], own)
        same = sum(a.tokens == b.tokens for a, b in zip(completions, reference, strict=True)) / len(reference)
        print(
            f"{where} {dtype}: same tokens {same:.3f}, log-prob gap to float64 {gap:.2e}, own ratio off by {ratio:.2e}"
        )
        assert gap < allowed[dtype], gap


def _largest_gap(left: list[list[float]], right: list[list[float]]) -> float:
    pairs = (pair for a, b in zip(left, right, strict=True) for pair in zip(a, b, strict=True))
    return max(abs(x - y) for x, y in pairs)


def rollout(device: str) -> None:
    """Tokens per second and peak memory of the product's own generation, beside the planned peak. The first of two
    equal batches loads kernels."""
    import torch

    from benchmarks.hrl_speed import saved
    from r2v.config import HierarchicalConfig, PolicyConfig, RolloutConfig
    from r2v.hrl.models.roles import build_roles
    from r2v.hrl.parallel.micro_batch import REHEARSED, largest_micro_batches
    from r2v.hrl.rollout.generator import GenerationRequest, Generator
    from r2v.memory.models import known_model, values_of
    from r2v.memory.planner.planner import plan_strategy
    from r2v.memory.planner.training_job import CUBLAS_WORKSPACES, Machine, Strategy, TrainingJob
    from r2v.memory.store import Measuring, measurement

    with tempfile.TemporaryDirectory() as folder, Measuring() as measure:
        lookup = partial(measurement, measure=measure)
        model = saved(values_of(MODEL), Path(folder) / "model", torch.bfloat16)
        policy = PolicyConfig(model_name=str(model), lora_r=16, device=device, dtype="bfloat16")
        roles = build_roles(policy, HierarchicalConfig(), 0)
        for rows, prompt, new in ((64, 256, 128), (64, 256, 128), (64, 512, 128)):
            job = TrainingJob(
                stage="hierarchical",
                code=REHEARSED,
                model=known_model(MODEL, measure),
                prompt_tokens=prompt,
                completion_tokens=new,
                episodes=rows,
                hints=1,
                batch=8,  # log-probabilities are computed for as many rows as in an update
            )
            planned = plan_strategy(job, Machine(memory=139 * GIB), Strategy(placement="shared"), lookup)
            memory = next(phase.memory for phase in planned.phases if phase.phase.name == "rollout, actor")
            together = largest_micro_batches(planned).rollout_rows(RolloutConfig(batch_size=rows))
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            begun = time.perf_counter()
            requests = [
                GenerationRequest(
                    prompt=tuple(5 + (i * 7 + j) % 40 for j in range(prompt)), key=("k", i), max_tokens=new
                )
                for i in range(rows)
            ]
            completions = Generator(roles, "actor", rows=together).generate(requests)
            torch.cuda.synchronize()
            tokens = sum(len(completion.tokens) for completion in completions) / (time.perf_counter() - begun)
            allocated, reserved = torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB
            expected = (memory.total + CUBLAS_WORKSPACES) / GIB
            print(
                f"{rows} x ({prompt} + {new}), {together.read} read at a time: {tokens:.0f} tokens/s, allocated "
                f"{allocated:.2f}, reserved {reserved:.2f}, planned {expected:.2f} GiB ({memory.peak_at})"
            )


def prefixes(device: str) -> None:
    """Seconds to read growing prompts, as an agent's are: with all of them read again, and with only their new
    tokens."""
    import torch

    from r2v.llm.local.prefill import prefill
    from r2v.llm.local.prefix_cache import PrefixCache
    from r2v.memory.models import values_of

    rows, first, grown = (8, 4096, 256) if device != "cpu" else (2, 48, 16)
    for name in (MODEL, "meta-llama/Llama-3.1-8B"):
        model = _random_llama(device, values_of(name))
        texts = [tuple(5 + (i * 7 + j * 13) % 900 for j in range(first + 3 * grown)) for i in range(rows)]
        for cache in (None, PrefixCache(model, 1 << 34)):
            seconds = []
            with torch.inference_mode():
                for step in range(4):
                    prompts = [text[: first + step * grown] for text in texts]
                    _wait(device)
                    begun = time.perf_counter()
                    prefill(model, prompts, 0, cache, logits_to_keep=1)
                    _wait(device)
                    seconds.append(time.perf_counter() - begun)
            steps = ", ".join(f"{duration:.3f}" for duration in seconds)
            how = "kept" if cache else "made anew"
            print(f"{name}, {rows} prompts of {first} and {grown} more a step, states {how}: {steps} s")
        del model, cache


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def oom_retry(device: str) -> None:
    """A step that runs out of GPU memory is run again with fewer rows, to the same gradient."""
    import torch

    from r2v.memory.on_device.retry_on_oom import retry_on_oom

    free, _ = torch.cuda.mem_get_info()
    filler = torch.empty(int(free - 3 * GIB), dtype=torch.uint8, device=device)  # leaves room for 24 rows of 64
    weight = torch.nn.Parameter(torch.ones(1024, 1024, device=device))
    inputs = torch.randn(64, 256, 1024, device=device)

    def step(rows: int) -> int:
        for begin in range(0, 64, rows):
            row_memory = torch.empty(rows * 96 * 2**20, dtype=torch.uint8, device=device)
            ((inputs[begin : begin + rows] @ weight).square().sum() / 64).backward()  # type: ignore[no-untyped-call]
            del row_memory
        return 1

    def taken_gradient() -> torch.Tensor:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        return gradient

    done = retry_on_oom(step, 64, [weight], phase="actor")
    retried = taken_gradient()
    step(1)
    row_by_row = taken_gradient()
    print("rows", done.rows, "largest gradient difference", float((retried - row_by_row).abs().max()))
    assert done.rows < 64 and torch.allclose(retried, row_by_row, rtol=1e-4)
    del filler


def four_bit(device: str) -> None:
    """An nf4 base with two adapters: the loss is finite, and gradients reach only one role's adapter."""
    import torch

    from benchmarks.hrl_speed import saved
    from r2v.config import HierarchicalConfig, PolicyConfig
    from r2v.hrl.algorithm.logprobs import completion_logprobs, pad_sequences
    from r2v.hrl.models.roles import build_roles
    from r2v.memory.models import values_of

    with tempfile.TemporaryDirectory() as folder:
        model = saved(values_of(MODEL), Path(folder) / "model", torch.bfloat16)
        policy = PolicyConfig(model_name=str(model), lora_r=16, device=device, load_in_4bit=True)
        roles = build_roles(policy, HierarchicalConfig(), 0)
        torch.cuda.reset_peak_memory_stats()
        static = torch.cuda.memory_allocated()
        batch = pad_sequences([list(range(5, 261))] * 4, [list(range(5, 69))] * 4, device=device)
        with roles.using("actor") as actor:
            loss = -completion_logprobs(actor, batch).mean()
            loss.backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None for p in roles.parameters("actor"))
        assert all(p.grad is None for p in roles.parameters("guidance"))
        print(
            f"loss {float(loss):.4f}, static {static / GIB:.2f}, peak {torch.cuda.max_memory_allocated() / GIB:.2f} GiB"
        )


def stages(device: str) -> None:
    """Behaviour cloning, the verifier and evaluation of the clone, by the product's own commands, and the audit of the
    results."""
    from r2v.cli.main import main

    small = ["--config", str(MICRO), "--overrides", f"policy.device={device}"]
    with tempfile.TemporaryDirectory() as folder, _within(folder):
        for name, words in [*STAGES.items(), ("verify-results", ["results/micro"])]:
            begun = time.perf_counter()
            options = [word for word in words if "=" not in word]
            own = [word for word in words if "=" in word]
            code = main([name, *options, *([] if name == "verify-results" else [*small, *own])])
            print(f"{name}: exit {code}, {time.perf_counter() - begun:.1f} s")
            assert code == 0, name


def adapters(device: str) -> None:
    """The ten stages in one command with adapters on a model of a published shape, and the audit of the results."""
    import torch

    from benchmarks.hrl_speed import saved
    from r2v.cli.main import main
    from r2v.memory.models import values_of

    with tempfile.TemporaryDirectory() as folder:
        values = {**values_of(PUPIL), **(SMALL_LLAMA if device == "cpu" else {})}
        model = saved(values, Path(folder) / "model", torch.float32 if device == "cpu" else torch.bfloat16)
        words = [f"policy.model_name={model}", f"policy.device={device}", *ADAPTERS.split()]
        with _within(folder):
            for command in (
                ["run", "--config", str(MICRO), "--overrides", *words],
                ["verify-results", "results/micro"],
            ):
                begun = time.perf_counter()
                code = main(command)
                print(f"{command[0]}: exit {code}, {time.perf_counter() - begun:.1f} s")
                assert code == 0, command[0]
    if device != "cpu":
        print(f"peak {torch.cuda.max_memory_allocated() / GIB:.2f} GiB")


@contextmanager
def _within(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def decoding(device: str) -> None:
    """Greedy completions by our decoder and by transformers' generate: the same tokens, and tokens a second of each,
    warm, in turns."""
    import torch

    from r2v.llm.local.decode import Draw, generate
    from r2v.memory.models import values_of

    rows, prompt, new, rounds = (48, 256, 64, 3) if device != "cpu" else (4, 24, 8, 1)
    model = _random_llama(device, values_of(MODEL))
    prompts = [[5 + (i * 7 + j * 13) % 900 for j in range(prompt)] for i in range(rows)]
    draws = [Draw(prompt=i, key=(), temperature=0, top_p=1, max_tokens=new) for i in range(rows)]
    ids = torch.tensor(prompts, device=device)
    seconds: dict[str, float] = {}
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for name in ("ours", "transformers"):
                begun = time.perf_counter()
                if name == "ours":
                    ours = [
                        completion.tokens
                        for completion in generate(model, prompts, draws, end_ids=frozenset(), pad_id=0)
                    ]
                else:
                    generated = model.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        max_new_tokens=new,
                        min_new_tokens=new,
                        do_sample=False,
                    )
                    theirs = generated[:, prompt:].tolist()
                seconds[name] = seconds.get(name, 0.0) + (time.perf_counter() - begun if turn else 0.0)
    alike = sum(a == b for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)) / (rows * new)
    first = sum(x[0] == y[0] for x, y in zip(ours, theirs, strict=True)) / rows
    rates = {name: rounds * rows * new / spent for name, spent in seconds.items()}
    speeds = ", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in rates.items())
    print(
        f"{rows} x ({prompt} + {new}): {speeds}, ratio {rates['ours'] / rates['transformers']:.2f}; "
        f"same tokens {alike:.3f}, same first token {first:.3f}"
    )
    assert first > 0.9, "greedy first tokens differ by more than rounding can make them"


def _random_llama(device: str, values: Mapping[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**values, **(SMALL_LLAMA if device == "cpu" else {})}
    config = AutoConfig.for_model(values.pop("model_type"), **{k: v for k, v in values.items() if k != "dtype"})
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


PARTS: dict[str, tuple[int, Callable[[str], None]]] = {
    "machine": (10, machine),
    "oom-retry": (20, oom_retry),
    "decoding": (35, decoding),
    "numbers": (30, numbers),
    "rollout": (40, rollout),
    "training": (45, placements),
    "stages": (50, stages),
    "full-weights": (90, full_weights),
    "prefixes": (60, prefixes),
    "four-bit": (120, four_bit),
    "adapters": (300, adapters),
}
"""By name: the limit in seconds, and the part."""
BY_NAME = ("full-weights", "prefixes", "four-bit", "adapters")
"""Parts that are run only by name, one at a time, because ten minutes do not hold them."""
NEEDS = {
    "four-bit": ("bitsandbytes",),
    "speed-beside-trl": ("trl",),
    "speed-beside-vllm": ("trl",),
    "stages": ("trl", "peft", "datasets"),
    "adapters": ("trl", "peft", "datasets"),
}
"""Packages that a part needs in addition to torch and transformers."""
