"""Tokens per second of each part of a hierarchical training round, beside TRL's GRPO in the same run.

    python benchmarks/hrl_speed.py                                           # a small random model on a CPU
    python benchmarks/hrl_speed.py --cuda --model meta-llama/Llama-3.2-1B    # its shape, random weights, bfloat16

Both sides have the same weights, prompts, completion length, samples per prompt, LoRA rank, rows at a time and KL to
the base; neither checkpoints activations. TRL generates with transformers, without vLLM. Tokens are those generated;
for reference pass and update, those of whole rows. Ours also computes each completion token's log-probability as an
update does; TRL leaves that out where a completion is learned from once. `round` is the whole round per generated
token. The first round of each side is not counted. On a GPU peaks are printed too: of both sides, and of ours with
separate copies in place of one shared base.
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
from r2v.hrl.algorithm.training_batch import POLICY_STATISTICS, TrainingBatch, batch_logprobs, pad_rows, policy_loss_fn
from r2v.hrl.models.roles import Roles, build_roles
from r2v.hrl.parallel.micro_batch import RolloutRows
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.word_problems import word_problems
from r2v.hrl.training.optimizer_step import Network, optimizer_step
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
KL, RANK, RATE = 0.01, 16, 1e-5


class Stopwatch:
    """Seconds and tokens of each kind of work, round by round."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.rounds: dict[str, list[tuple[float, float]]] = defaultdict(list)

    @contextmanager
    def timed(self) -> Iterator[list[float]]:
        """Time the block; its seconds are appended to the yielded list at the end."""
        elapsed = list[float]()
        self._wait()
        began = time.perf_counter()
        yield elapsed
        self._wait()
        elapsed.append(time.perf_counter() - began)

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

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
    """Return the rates of R2V, and the peak in GiB (0 on a CPU)."""
    policy = PolicyConfig(
        model_name=str(model),
        lora_r=RANK,
        device="cuda" if arguments.cuda else "cpu",
        dtype="bfloat16" if arguments.cuda else "float32",
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
    _begin(arguments.cuda)
    for number in range(arguments.rounds + 1):
        _round(roles, network, h, prompts, arguments, watch, number)
    return watch, _peak(arguments.cuda)


class TimedSpeaker(Generator):
    """A generator that times its second pass."""

    def __init__(self, watch: Stopwatch, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.watch, self.weighing = watch, 0.0

    def _logprobs(self, *given: Any) -> Any:
        with self.watch.timed() as seconds:
            result = super()._logprobs(*given)
        self.weighing += seconds[0]
        return result


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
    speaker = TimedSpeaker(watch, roles, "actor", rows=RolloutRows(rows={"actor": count}, read=count))
    with watch.timed() as seconds:
        completions = speaker.generate(
            [
                GenerationRequest(prompt=row, key=(number, at, k), max_tokens=arguments.completion)
                for at, row in enumerate(rows)
                for k in range(arguments.samples)
            ]
        )
    whole = sum(len(completion.prompt) + len(completion.tokens) for completion in completions)
    watch.add("generation", sum(len(completion.tokens) for completion in completions), seconds[0] - speaker.weighing)
    watch.add("weighing", whole, speaker.weighing)
    with watch.timed() as seconds, roles.using("reference") as model:
        reference = batch_logprobs(model, device, completions, arguments.micro)
    watch.add("reference", whole, seconds[0])
    batch = TrainingBatch(
        advantage=torch.tensor([uniform("score", *completion.tokens) - 0.5 for completion in completions]),
        beta=torch.full((len(completions),), KL),
        behaviour=pad_rows([completion.logprobs for completion in completions]),
        reference=pad_rows(reference),
    )
    with watch.timed() as seconds, roles.using("actor") as model:
        optimizer_step(
            network, range(len(completions)), policy_loss_fn(model, device, completions, batch, h), POLICY_STATISTICS
        )
    watch.add("update", whole, seconds[0])
    watch.close()


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
        self.began = time.perf_counter()

    def on_optimizer_step(self, *given: Any, **named: Any) -> None:
        trainer = self.trainer
        trainer.watch._wait()
        trainer.watch.add("update", trainer.whole, trainer.updating + time.perf_counter() - self.began)
        trainer.watch.close()
        trainer.updating = 0.0


def theirs(model: Path, prompts: Sequence[str], arguments: argparse.Namespace, folder: Path) -> tuple[Stopwatch, float]:
    """Return the rates of TRL, and the peak in GiB (0 on a CPU)."""
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
        model_init_kwargs={"dtype": "bfloat16" if arguments.cuda else "float32"},
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
    _begin(arguments.cuda)
    trainer.train()
    return trainer.watch, _peak(arguments.cuda)


def _begin(cuda: bool) -> None:
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak(cuda: bool) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0


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
    arguments = parser.parse_args()
    prompts = texts(arguments.prompts, arguments.problems)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = saved(
            values_of(arguments.model) if arguments.model else SMALL,
            folder / "model",
            torch.bfloat16 if arguments.cuda else torch.float32,
        )
        mine, peak = ours(model, prompts, arguments, "shared")
        peer, peer_peak = theirs(model, prompts, arguments, folder / "trl")
        print(
            f"{arguments.prompts} prompts x {arguments.samples}, at most {arguments.completion} tokens, "
            f"micro-batches of {arguments.micro}; tokens per second, median of {arguments.rounds} rounds"
        )
        print(f"{'':<12}{'ours':>10}{'TRL GRPO':>10}{'ratio':>8}")
        for work in ("generation", "weighing", "reference", "update", "round"):
            print(f"{work:<12}{mine.of(work):>10.0f}{peer.of(work):>10.0f}{mine.of(work) / peer.of(work):>8.2f}")
        if arguments.cuda:
            _, copies = ours(model, prompts, arguments, "full")
            print(f"peak, GiB: ours {peak:.2f}, TRL {peer_peak:.2f}; ours with copies instead of one base {copies:.2f}")
        else:
            print("memory is measured on a GPU alone: --cuda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
