"""Tokens per second of each part of a hierarchical training round, beside TRL's GRPO in the same run.

    python benchmarks/hrl_speed.py                                           # a small random model on a CPU
    python benchmarks/hrl_speed.py --narrow                                  # 16 narrow layers: launches, as on a GPU
    python benchmarks/hrl_speed.py --peaks                                   # bytes of live tensors, in bfloat16
    python benchmarks/hrl_speed.py --cuda --model meta-llama/Llama-3.2-1B    # its shape, random weights, bfloat16

Both sides have the same weights, prompts, completion length, samples per prompt, LoRA rank, rows at a time and KL to
the base; neither checkpoints activations. TRL generates with transformers, without vLLM. Tokens are those generated;
for reference pass and update, those of whole rows. `round` is the whole round per generated token. The first round of
each side is not counted. A CPU's seconds are its process's own. On a GPU peaks are printed too: of both sides, and of
ours with separate copies in place of one shared base. `padding` is the share of our update's tokens that are padding.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.recipes.toy_policy import build_tokenizer
from r2v.config import GuidanceConfig, HierarchicalConfig, KLConfig, PolicyConfig
from r2v.hrl.algorithm.training_batch import (
    POLICY_STATISTICS,
    TrainingBatch,
    batch_logprobs,
    pad_rows,
    policy_loss_fn,
    sorted_by_length,
)
from r2v.hrl.models.roles import Roles, build_roles
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.word_problems import word_problems
from r2v.hrl.training.optimizer_step import Network, optimizer_step
from r2v.memory.measured.tracker import Tracker
from r2v.memory.model_registry import ModelConfigValues
from r2v.memory.models import values_of
from r2v.randomness import uniform

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
NARROW: ModelConfigValues = SMALL | {
    "hidden_size": 64,
    "num_hidden_layers": 16,
    "intermediate_size": 256,
    "vocab_size": 2048,
}
KL, RANK, RATE = 0.01, 16, 1e-5


class Stopwatch:
    """Seconds and tokens of each kind of work, round by round."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.rounds: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.padding = list[float]()
        """Share of padding in the last update, in the order of the rollout and in the update's own."""

    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Time the block; its seconds are appended to the yielded list at the end."""
        elapsed = list[float]()
        began = self.now()
        yield elapsed
        elapsed.append(self.now() - began)

    def now(self) -> float:
        """Return seconds: of the clock once the GPU has finished, or of this process on a CPU."""
        if not self.cuda:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def add(self, work: str, tokens: float, seconds: float) -> None:
        """Add a round's tokens and seconds of a kind of work."""
        self.rounds[work].append((tokens, seconds))

    def close(self) -> None:
        """Add the whole round, once its parts were added."""
        self.add(
            "round",
            self.rounds["generation"][-1][0],
            sum(parts[-1][1] for work, parts in self.rounds.items() if work != "round"),
        )

    def of(self, work: str) -> float:
        """Return tokens per second: the median of all rounds but the first; NaN for work that is not done."""
        return statistics.median(tokens / seconds for tokens, seconds in self.rounds.get(work, [])[1:] or [(nan, 1.0)])


def saved(values: ModelConfigValues, folder: Path, dtype: torch.dtype) -> Path:
    """Write a model of this shape with random weights, with the toy policy's tokenizer, and return its folder."""
    tokenizer = build_tokenizer()
    own = {key: value for key, value in values.items() if key not in ("model_type", "dtype")}
    config = AutoConfig.for_model(
        values["model_type"],
        **own | {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None},
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a CPU takes a minute for 10^9 numbers
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def texts(count: int, problems: int) -> list[str]:
    """Return `count` prompts of `problems` word problems each."""
    word_texts = word_problems(count * problems, 0, "train")
    return [
        " ".join(problem.text for problem in word_texts[at * problems : (at + 1) * problems]) for at in range(count)
    ]


def ours(model: Path, prompts: Sequence[str], arguments: argparse.Namespace, placement: Any) -> tuple[Stopwatch, float]:
    """Return the rates of R2V, and the peak in GiB (`measured`)."""
    policy = PolicyConfig(
        model_name=str(model),
        lora_r=RANK,
        device="cuda" if arguments.cuda else "cpu",
        dtype=arguments.dtype,
        load_in_4bit=False,
    )
    h = HierarchicalConfig(
        placement=placement,
        answer_tokens=arguments.completion,
        lr=RATE,
        kl=KLConfig(later=KL),
        guidance=GuidanceConfig(enabled=placement == "full"),
        advantage="score",
    )
    roles, watch = build_roles(policy, h, 0), Stopwatch(arguments.cuda)
    network = Network(
        "actor", roles.parameters("actor"), lr=RATE, clip=1.0, micro_batch_size=arguments.micro, setting="lr"
    )
    with measured(arguments) as peak:
        for number in range(arguments.rounds + 1):
            _round(roles, network, h, prompts, arguments, watch, number)
    return watch, peak[0]


def _round(
    roles: Roles,
    network: Network,
    h: HierarchicalConfig,
    prompts: Sequence[str],
    arguments: argparse.Namespace,
    watch: Stopwatch,
    number: int,
) -> None:
    rows = [
        tuple(
            roles.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        )
        for text in prompts
    ]
    device = roles.device("actor")
    count = len(rows) * arguments.samples
    speaker = Generator(roles, "actor", rows=RolloutRows(rows={"actor": count}, read=count))
    with watch.timed() as seconds:
        completions = speaker.generate(
            [
                GenerationRequest(
                    prompt=row, key=(number, at, k), max_tokens=arguments.completion, return_logprobs=False
                )
                for at, row in enumerate(rows)
                for k in range(arguments.samples)
            ]
        )
    whole = sum(len(completion.prompt) + len(completion.tokens) for completion in completions)
    watch.add("generation", sum(len(completion.tokens) for completion in completions), seconds[0])
    with watch.timed() as seconds, roles.using("reference") as model:
        reference = batch_logprobs(model, device, completions, arguments.micro)
    watch.add("reference", whole, seconds[0])
    batch = TrainingBatch(
        advantage=torch.tensor([uniform("score", *completion.tokens) - 0.5 for completion in completions]),
        beta=torch.full((len(completions),), KL),
        behaviour=pad_rows([completion.logprobs for completion in completions]),
        reference=pad_rows(reference),
    )
    order = sorted_by_length(completions, range(count))
    with watch.timed() as seconds, roles.using("actor") as model:
        optimizer_step(network, order, policy_loss_fn(model, device, completions, batch, h), POLICY_STATISTICS)
    watch.add("update", whole, seconds[0])
    watch.close()
    lengths = [len(completion.prompt) + len(completion.tokens) for completion in completions]
    watch.padding = [padding([lengths[i] for i in rows], arguments.micro) for rows in (range(count), order)]


def padding(lengths: Sequence[int], micro: int) -> float:
    """Return the share of padding in the tokens of micro-batches of neighbours."""
    parts = [lengths[start : start + micro] for start in range(0, len(lengths), micro)]
    return 1 - sum(lengths) / sum(len(part) * max(part) for part in parts)


class Timed(GRPOTrainer):  # type: ignore[misc]
    """TRL's, with a stopwatch."""

    watch: Stopwatch
    whole, generating, scoring, updating = 0, 0.0, 0.0, 0.0

    def _generate(self, prompts: Any) -> Any:
        with self.watch.timed() as seconds:
            result = super()._generate(prompts)
        self.generating = seconds[0]
        generated = sum(map(len, result[1]))
        self.whole = generated + sum(map(len, result[0]))
        self.watch.add("generation", generated, seconds[0])
        return result

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        with self.watch.timed() as seconds:
            result = super()._generate_and_score_completions(inputs)
        self.scoring = seconds[0]
        self.watch.add("reference", self.whole, seconds[0] - self.generating)
        return result

    def training_step(self, *given: Any, **named: Any) -> Any:
        self.scoring = 0.0
        with self.watch.timed() as seconds:
            result = super().training_step(*given, **named)
        self.updating += seconds[0] - self.scoring
        return result


class Stepping(TrainerCallback):  # type: ignore[misc]
    """Adds the optimizer's own seconds, and closes a round."""

    def __init__(self, trainer: Timed) -> None:
        self.trainer, self.began = trainer, 0.0

    def on_pre_optimizer_step(self, *given: Any, **named: Any) -> None:
        self.began = self.trainer.watch.now()

    def on_optimizer_step(self, *given: Any, **named: Any) -> None:
        trainer = self.trainer
        trainer.watch.add("update", trainer.whole, trainer.updating + trainer.watch.now() - self.began)
        trainer.watch.close()
        trainer.updating = 0.0


def theirs(model: Path, prompts: Sequence[str], arguments: argparse.Namespace, folder: Path) -> tuple[Stopwatch, float]:
    """Return the rates of TRL, and the peak in GiB (`measured`)."""
    rows = len(prompts) * arguments.samples
    settings = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=arguments.micro,
        gradient_accumulation_steps=rows // arguments.micro,
        num_generations=arguments.samples,
        max_completion_length=arguments.completion,
        temperature=1.0,
        beta=KL,
        learning_rate=RATE,
        max_steps=arguments.rounds + 1,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        use_cpu=not arguments.cuda,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        max_grad_norm=1.0,
        seed=0,
        model_init_kwargs={"dtype": arguments.dtype},
        dataloader_pin_memory=arguments.cuda,
    )
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in prompts])
    trainer = Timed(
        model=str(model),
        args=settings,
        train_dataset=data,
        reward_funcs=lambda completions, **_: [uniform("score", str(completion)) for completion in completions],
        peft_config=LoraConfig(
            r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
        ),
    )
    trainer.watch = Stopwatch(arguments.cuda)
    trainer.add_callback(Stepping(trainer))
    torch.set_num_threads(1)
    with measured(arguments) as peak:
        trainer.train()
    return trainer.watch, peak[0]


@contextmanager
def measured(arguments: argparse.Namespace) -> Iterator[list[float]]:
    """Append the peak in GiB to the yielded list: allocated on the GPU, or bytes of live tensors (`--peaks`)."""
    peak = list[float]()
    gc.collect()
    if arguments.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        yield peak
        peak.append(torch.cuda.max_memory_allocated() / 2**30)
    elif arguments.peaks:
        with Tracker() as tracker, tracker.span("all"):
            yield peak
        peak.append(tracker.peaks["all"] / 2**30)
    else:
        yield peak
        peak.append(nan)


def main() -> int:
    """Run both and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--model", help="model with the shape to use (default: a small one)")
    for flag, value, what in (
        ("prompts", 16, "of a round"),
        ("samples", 4, "completions of each prompt"),
        ("problems", 4, "word problems in a prompt"),
        ("completion", 64, "tokens at most"),
        ("micro", 8, "rows per micro-batch in reference pass and update"),
        ("rounds", 3, "counted"),
    ):
        parser.add_argument(f"--{flag}", type=int, default=value, help=f"{what} ({value})")
    parser.add_argument("--narrow", action="store_true", help="16 narrow layers, whose time is that of launches")
    parser.add_argument("--peaks", action="store_true", help="bytes of live tensors on a CPU, of a bfloat16 model")
    arguments = parser.parse_args()
    arguments.dtype = "bfloat16" if arguments.cuda or arguments.peaks else "float32"
    prompts = texts(arguments.prompts, arguments.problems)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = saved(
            values_of(arguments.model) if arguments.model else NARROW if arguments.narrow else SMALL,
            folder / "model",
            getattr(torch, arguments.dtype),
        )
        mine, peak = ours(model, prompts, arguments, "shared")
        peer, peer_peak = theirs(model, prompts, arguments, folder / "trl")
        print(
            f"{arguments.prompts} prompts x {arguments.samples}, at most {arguments.completion} tokens, "
            f"micro-batches of {arguments.micro}; tokens per second, median of {arguments.rounds} rounds"
        )
        print(f"{'':<12}{'ours':>10}{'TRL GRPO':>10}{'ratio':>8}")
        for work in ("generation", "reference", "update", "round"):
            print(f"{work:<12}{mine.of(work):>10.0f}{peer.of(work):>10.0f}{mine.of(work) / peer.of(work):>8.2f}")
        print(f"padding of an update: {mine.padding[1]:.1%}, {mine.padding[0]:.1%} in the order of the rollout")
        print(f"peak, GiB: ours {peak:.3f}, TRL {peer_peak:.3f}")
        if arguments.cuda:
            print(f"ours with copies instead of one base: {ours(model, prompts, arguments, 'full')[1]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
