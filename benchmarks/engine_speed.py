"""Tokens per second of the local decoder and of vLLM through R2V, beside plain vLLM in the same run.

    python benchmarks/engine_speed.py --cuda          # the shape of SmolLM2-135M, random weights, bfloat16

All sides answer the same prompts, sent at once after a warm-up, with as many tokens. `local` is R2V's default: rows
chosen from the free memory; `local, 64 rows` is the former default. Plain vLLM runs in process with its own defaults,
with two log-probabilities a token and without any. vLLM is that of `r2v engine install` (or --engine-venv); without it
the local decoder is measured alone. The time of a draw is printed too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from r2v.config import Config, load
from r2v.llm.engines.release import engine_home, installed_version
from r2v.llm.types import Request
from r2v.wire.message import Message

MODEL = "HuggingFaceTB/SmolLM2-135M"
ENGINE_MEMORY = 0.4
PLAIN = f"""
import json, sys, time
import vllm
model, prompts, new = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3])
own = {{"gpu_memory_utilization": {ENGINE_MEMORY}, "max_model_len": int(sys.argv[4])}}
engine = vllm.LLM(model, dtype="bfloat16", seed=0, **own)
for logprobs in (2, None):
    for asked in (prompts[:8], prompts):
        sampling = vllm.SamplingParams(temperature=1.0, max_tokens=new, logprobs=logprobs, ignore_eos=True)
        engine.reset_prefix_cache()
        begun = time.perf_counter()
        done = engine.generate([{{"prompt_token_ids": ids}} for ids in asked], sampling, use_tqdm=False)
        seconds = time.perf_counter() - begun
    print("rate", json.dumps([logprobs, sum(len(one.outputs[0].token_ids) for one in done) / seconds]), flush=True)
"""
"""Program of plain vLLM, for the engine's Python."""


def requests(side: str, count: int, problems: int, new: int) -> list[Request]:
    """Return sampled requests of `problems` word problems each; those of another side have other keys, so that no reply
    is remembered."""
    from benchmarks.hrl_speed import texts

    return [
        Request(messages=(Message(role="user", content=text),), key=(side, index), temperature=1.0, max_tokens=new)
        for index, text in enumerate(texts(count, problems))
    ]


async def _rate(config: Config, asked: Sequence[Request]) -> float:
    """Return tokens per second of all requests at once, after a warm-up with other prompts."""
    from r2v.llm.waves import Waves
    from r2v.rollout.model_factory import priced_policy

    waves = Waves(max_conversations=len(asked))
    model = priced_policy(config.policy, None, config.cost, config.inference, config.rollout, waves).model
    async with waves.open():
        for some in (requests("warm-up", 8, 1, 4), asked):
            begun = time.perf_counter()
            replies = await asyncio.gather(*(model.reply(request) for request in some))
            seconds = time.perf_counter() - begun
    return sum(reply.usage.tokens_out for reply in replies) / seconds


def drawing(device: str, rows: int, vocabulary: int) -> None:
    """Print the milliseconds of choosing a token for many rows, with and without top-p."""
    import torch

    from r2v.llm.sampling import choose

    logits = torch.randn(rows, vocabulary, device=device) * 8
    for top_p in (0.95, 1.0):
        for count in (1, 10):
            begun = time.perf_counter()
            for _ in range(count):
                choose(logits, [1.0] * rows, [top_p] * rows, [0.5] * rows).tokens.tolist()
            seconds = (time.perf_counter() - begun) / count
        print(f"draw of {rows} rows, {vocabulary} tokens, top_p {top_p}: {seconds * 1e3:.2f} ms", flush=True)


def plain_rates(python: Path, model: Path, prompts: Path, new: int, context: int) -> dict[int | None, float]:
    """Return tokens per second of plain vLLM, by the number of log-probabilities."""
    words = [str(python), "-c", PLAIN, str(model), str(prompts), str(new), str(context)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("rate "))


def main() -> int:
    """Measure all sides and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true", help="on the GPU (default: a small model on the CPU)")
    parser.add_argument("--engine-venv", metavar="DIR", help="vLLM's environment (default: of r2v engine install)")
    parser.add_argument("--requests", type=int, default=512, metavar="N", help="sent at once (512)")
    parser.add_argument("--problems", type=int, default=20, metavar="N", help="word problems in a prompt (20)")
    parser.add_argument("--new", type=int, default=64, metavar="N", help="tokens of a reply at most (64)")
    arguments = parser.parse_args()

    import torch

    from benchmarks.hrl_speed import SMALL, saved
    from r2v.memory.models import values_of
    from r2v.policy.load import load_tokenizer
    from r2v.policy.prompt_encoder import Encoder

    sizes = arguments.requests, arguments.problems, arguments.new
    device, dtype = ("cuda", "bfloat16") if arguments.cuda else ("cpu", "float32")
    home = engine_home(arguments.engine_venv)
    with tempfile.TemporaryDirectory() as scratch:
        model = saved(values_of(MODEL) if arguments.cuda else SMALL, Path(scratch) / "model", getattr(torch, dtype))
        own = [f"policy.model_name={model}", f"policy.device={device}", f"policy.dtype={dtype}", "policy.lora_r=16"]
        own += ["policy.max_seq_len=1024", f"inference.max_new_tokens={arguments.new}"]
        own += [f"policy.engine_venv={home}", f"policy.engine_memory={ENGINE_MEMORY}"]
        base = load(None, own)
        encode = Encoder.of(load_tokenizer(base.policy), base.policy, arguments.new)
        prompts = [list(encode(request.messages)) for request in requests("", *sizes)]
        (Path(scratch) / "prompts.json").write_text(json.dumps(prompts))
        tokens = sum(map(len, prompts)) / len(prompts)
        print(
            f"{len(prompts)} requests of {tokens:.0f} tokens on average, at most {arguments.new} new ones", flush=True
        )
        rates: dict[str, float] = {}

        def add(side: str, rate: float) -> None:
            rates[side] = rate
            print(f"{side}: {rate:.0f} tokens/s", flush=True)

        def measure(side: str, *overrides: str, logprobs: bool = True) -> None:
            asked = [replace(request, logprobs=logprobs) for request in requests(side, *sizes)]
            add(side, asyncio.run(_rate(load(None, [*own, *overrides]), asked)))

        measure("local")
        measure("local, 64 rows", "rollout.batch_size=64")
        drawing(device, 250 if arguments.cuda else 8, 49_152)
        if installed_version(home) is None or not arguments.cuda:
            print(f"vLLM: {'not on a CPU' if not arguments.cuda else f'not installed at {home}'}; local alone")
            return 0
        torch.cuda.empty_cache()
        measure("vLLM by R2V", "policy.engine=vllm")
        measure("vLLM by R2V, bare", "policy.engine=vllm", logprobs=False)
        plain = plain_rates(home / "bin/python", model, Path(scratch) / "prompts.json", arguments.new, 1024)
        add("plain vLLM, log-probabilities", plain[2])
        add("plain vLLM", plain[None])
        print(
            f"local / plain vLLM {rates['local'] / rates['plain vLLM']:.2f} (aim .5); vLLM by R2V / plain vLLM with "
            f"log-probabilities {rates['vLLM by R2V'] / rates['plain vLLM, log-probabilities']:.2f} (aim .95), without "
            f"{rates['vLLM by R2V, bare'] / rates['plain vLLM']:.2f} (aim .9)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
