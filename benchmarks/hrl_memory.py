"""The planner's peaks against those of the real hierarchical trainer: its own rollout, advantages and updates.

    python benchmarks/hrl_memory.py                        # 40 drawn cases: each phase's error, median and worst
    python benchmarks/hrl_memory.py --drawn 3 --seed 9

A case is a configuration drawn by chance: a model of random weights and a critic on disk, adapters or full training,
lengths, rows, checkpointing, optimizer, placement. The trainer is built as the stage builds it, with real tensors on
the CPU, and runs one iteration; a second one runs under the memory tracker (r2v/memory/measured/tracker.py), phase by
phase. The plan is made from the same configuration (r2v/memory/configured.py). Every prompt and every text has its
greatest length, as the plan assumes, but for one shorter in each batch, so that there is padding.

Data in the host's memory on a GPU's machine is not counted: the replay buffer, and the prompts' cache of states, which
generation does not use here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from r2v.config import Config, load
from r2v.hrl.parallel.micro_batch import REHEARSED
from r2v.hrl.rollout.generator import GenerationRequest, Generator
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Round
from r2v.hrl.training.build import build_trainer
from r2v.hrl.training.trainer import Trainer
from r2v.memory.configured import job_of_hierarchical
from r2v.memory.measured.child import answer
from r2v.memory.measured.tracker import Tracker
from r2v.memory.measurement import MeasuredCase, MeasuredMemory, from_values
from r2v.memory.planner.phases import critic_parameters, phase_memory
from r2v.memory.planner.roles import devices
from r2v.memory.planner.training_job import Strategy
from r2v.randomness import generator, uniform

MIB = 2**20
PHASES = ("rollout, actor", "rollout, guidance", "critic", "reference", "actor", "guidance")


@dataclass(frozen=True, kw_only=True)
class TrainerCase:
    """A configuration, and the rows at a time of each of its phases."""

    config: Config
    rows: int
    generated: int
    """Rows of a rollout."""

    def __str__(self) -> str:
        policy, h = self.config.policy, self.config.hierarchical
        how = f"lora {policy.lora_r} {policy.dtype}" if policy.lora_r else "full"
        again = " ckpt" if h.gradient_checkpointing else ""
        return f"{how} {self.rows}x({policy.max_seq_len}+{h.answer_tokens}) {h.placement} {h.optimizer}{again}"


class ExactPrompter:
    """Prompts of exactly the greatest length, but for every fourth problem's, which are shorter."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self.length, self.vocabulary = length, vocabulary

    def answer(self, problem: Problem, rounds: Sequence[Round] = ()) -> tuple[int, ...]:
        """Return tokens drawn for the problem and its earlier rounds."""
        return self._drawn("answer", problem.id, str(rounds))

    def hint(
        self, problem: Problem, rounds: Sequence[Round], answer: str, score: float | None = None
    ) -> tuple[int, ...]:
        """Return tokens drawn for the guidance."""
        return self._drawn("hint", problem.id, str(rounds), answer)

    def _drawn(self, *key: str) -> tuple[int, ...]:
        length = self.length - 4 * (uniform("shorter", *key) < 0.2)
        return tuple(int(self.vocabulary * uniform(*key, at)) for at in range(length))


def drawn(numbers: Iterable[int], seed: int, folder: Path) -> Iterator[tuple[int, TrainerCase]]:
    """Yield randomly drawn cases by number; their models are written below `folder`."""
    for at in numbers:
        yield at, _drawn(generator(seed, "trainer", at), folder / str(at))


def _drawn(draw: random.Random, folder: Path) -> TrainerCase:
    heads, width, rank = draw.choice([4, 6, 8]), draw.choice([16, 32]), draw.choice([0, 8, 16, 32])
    model = {
        "family": draw.choice(["llama", "qwen2"]),
        "hidden_size": heads * width,
        "num_hidden_layers": draw.randint(2, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([2, heads]),
        "intermediate_size": 32 * draw.randint(8, 24),
        "vocab_size": draw.randint(500, 8000),
        "tie_word_embeddings": draw.random() < 0.5,
    }
    write_models(folder, model, draw.choice([64, 128]))
    rows, prompt, answer, hints = draw.randint(2, 6), draw.randint(32, 120), draw.randint(4, 20), draw.choice([2, 3])
    settings = [
        f"policy.model_name={folder / 'model'}",
        f"policy.lora_r={rank}",
        f"policy.dtype={draw.choice(['bfloat16', 'float32']) if rank else 'float32'}",
        "policy.device=cpu",
        f"policy.max_seq_len={prompt}",
        f"hierarchical.critic.model_name={folder / 'critic'}",
        f"hierarchical.critic.max_tokens={draw.randint(32, 128)}",
        f"hierarchical.critic.batch_size={2 * rows}",
        "hierarchical.critic.updates=2",
        "hierarchical.critic.warmup=0",
        "hierarchical.critic.draws=0",
        "hierarchical.replay.capacity=200",
        f"hierarchical.episodes={2 * rows}",
        f"hierarchical.guidance.hints={hints}",
        f"hierarchical.answer_tokens={answer}",
        f"hierarchical.hint_tokens={answer}",
        f"hierarchical.micro_batch={rows}",
        f"hierarchical.gradient_checkpointing={str(draw.random() < 0.5).lower()}",
        f"hierarchical.optimizer={draw.choice(['adamw', 'adamw_fused'])}",
        f"hierarchical.placement={draw.choice(['shared', 'shared', 'full']) if rank else 'full'}",
        f"hierarchical.algorithm={draw.choice(['ppo', 'reinforce'])}",
        "hierarchical.problems.held_out=1",
        f"hierarchical.problems.count={2 * rows}",
        f"rollout.batch_size={2 * rows}",
    ]
    return TrainerCase(config=load(None, settings), rows=rows, generated=2 * rows)


def write_models(folder: Path, values: dict[str, Any], reader: int) -> None:
    """Write a decoder and an encoder of random weights, each with a tokenizer, as hub folders."""
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(int(values["vocab_size"]))}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w1")),
        pad_token="w0",
        unk_token="w1",
        eos_token="w2",
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2}
    sizes = {name: value for name, value in values.items() if name != "family"}
    causal = AutoModelForCausalLM.from_config(AutoConfig.for_model(values["family"], **sizes, **ends))
    encoder = AutoModel.from_config(
        AutoConfig.for_model(
            "roberta",
            hidden_size=reader,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=4 * reader,
            vocab_size=len(words),
            max_position_embeddings=514,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=0,
        )
    )
    for name, model in (("model", causal), ("critic", encoder)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


@cache
def _measured(text: str) -> MeasuredMemory:
    return from_values(answer(MeasuredCase(**json.loads(text))))


def _lookup(case: MeasuredCase) -> MeasuredMemory:
    return _measured(json.dumps(vars(case)))


def planned(case: TrainerCase) -> dict[str, int]:
    """Return the bytes that the plan predicts, by phase."""
    policy, h = case.config.policy, case.config.hierarchical
    job = job_of_hierarchical(policy, h, REHEARSED, answer)
    strategy = Strategy(placement=h.placement, checkpoint=bool(h.gradient_checkpointing))  # type: ignore[arg-type]
    device = devices(job, strategy, 1, critic_parameters(job, _lookup))[0]
    rows = {"rollout, actor": case.generated, "rollout, guidance": case.generated}
    by_name = {phase.name: phase for phase in device.phases}
    peaks = {
        name: round(phase_memory(job, strategy, device, phase, rows.get(name, case.rows), _lookup).total)
        for name, phase in by_name.items()
    }
    for role in ("actor", "guidance"):  # log-probabilities of the generated tokens
        read = phase_memory(job, strategy, device, replace(by_name[role], action="read"), case.rows, _lookup)
        peaks[f"rollout, {role}"] = max(peaks[f"rollout, {role}"], round(read.total))
    values = phase_memory(job, strategy, device, replace(by_name["critic"], action="read"), case.rows, _lookup)
    peaks["reference"] = max(peaks["reference"], round(values.total))  # advantages take the critic's values too
    return peaks


def tracked(case: TrainerCase, folder: Path) -> dict[str, int]:
    """Return the bytes that the trainer used, by phase."""
    trainer = _trainer(case, folder)
    for phase in ("rollout", "insert", "critic", "advantages", "actor", "guidance"):
        trainer._phases[phase]()
    state, peaks = trainer.state, dict[str, int]()
    with Tracker() as tracker:
        for name, tensors in _standing(trainer).items():
            tracker.label(name, tensors)
        for role in ("actor", "guidance"):
            requests = _requests(trainer, role)
            speaker = Generator(trainer.roles, role, rows=trainer.rows, prompt_cache=False)
            peaks[f"rollout, {role}"] = _peak(tracker, partial(speaker.generate, requests))
        assert trainer.critic_trainer is not None
        peaks["critic"] = _peak(tracker, trainer._phases["critic"])
        peaks["reference"] = _peak(tracker, trainer._phases["advantages"])
        peaks["actor"] = _peak(tracker, lambda: trainer.policies.update_actor(state.episodes, state.batches))
        peaks["guidance"] = _peak(tracker, lambda: trainer.policies.update_guidance(state.episodes, state.batches))
    return peaks


def _trainer(case: TrainerCase, folder: Path) -> Trainer:
    trainer = build_trainer(case.config, folder)
    policy = case.config.policy
    with trainer.roles.using("actor") as model:
        vocabulary = int(model.config.vocab_size)
    trainer.prompter = ExactPrompter(policy.max_seq_len, vocabulary)
    networks = [*trainer.policies.networks.values()]
    assert trainer.critic_trainer is not None
    for network in (*networks, trainer.critic_trainer.network):
        for group in network.optimizer.param_groups:
            group["foreach"] = case.config.hierarchical.optimizer == "adamw"  # as torch chooses on a GPU
    for critic in (trainer.roles.critic, trainer.roles.target.critic):
        critic.float()  # small ones are float64 on a CPU
    return trainer


def _standing(trainer: Trainer) -> dict[str, list[Tensor]]:
    """Return the tensors that exist before a phase begins: on the GPU, and (`host`) in host memory."""
    roles = trainer.roles
    bases = {id(base): base for base, _ in roles.language_models.values()}
    modules = [*(base.model for base in bases.values()), roles.critic, roles.target.critic]
    assert trainer.critic_trainer is not None
    networks = [*trainer.policies.networks.values(), trainer.critic_trainer.network]
    moments = [value for network in networks for state in network.optimizer.state.values() for value in state.values()]
    return {
        "weights": [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())],
        "optimizer": [value for value in moments if isinstance(value, Tensor)],
        "host": list(trainer.critic_trainer.replay_buffer.columns.values()),
    }


def _requests(trainer: Trainer, role: str) -> list[GenerationRequest]:
    """Return the requests of an iteration's first answers, or of its hints."""
    prompter, h = trainer.prompter, trainer.h
    count = 1 if role == "actor" else h.guidance.hints
    prompts = [
        prompter.answer(problem, []) if role == "actor" else prompter.hint(problem, [], "", None)
        for problem in trainer.problems
    ]
    return [
        GenerationRequest(prompt=prompt, key=("memory", at, k), max_tokens=h.longest_answer)
        for at, prompt in enumerate(prompts)
        for k in range(count)
    ]


def _peak(tracker: Tracker, act: Any) -> int:
    with tracker.span("phase"):
        act()
    return tracker.peaks["phase"] - tracker.parts.get("host", 0)


def compared(case: TrainerCase, folder: Path) -> dict[str, tuple[int, int]]:
    """Return bytes planned and tracked, by phase."""
    predicted, seen = planned(case), tracked(case, folder)
    return {name: (predicted[name], seen[name]) for name in PHASES}


def main() -> int:
    """Print a line for each case, then the summary."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--drawn", type=int, default=40)
    options.add_argument("--first", type=int, default=0, metavar="N", help="leave out the cases before; default: 0")
    options.add_argument("--seed", type=int, default=18)
    values = options.parse_args()
    torch.set_num_threads(1)
    began, errors = time.process_time(), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as name:
        for at, case in drawn(range(values.first, values.drawn), values.seed, Path(name)):
            line = []
            for phase, (predicted, seen) in compared(case, Path(name) / f"run{at}").items():
                errors.setdefault(phase, []).append(predicted / seen - 1)
                line.append(f"{phase} {seen / MIB:.1f} {errors[phase][-1]:+.2%}")
            print(f"{at:3} {case}: {'; '.join(line)}", flush=True)
    flat = [error for some in errors.values() for error in some]
    for phase, some in [*errors.items(), ("all phases", flat)]:
        median = statistics.median(abs(error) for error in some)
        print(
            f"{phase:18} median {median:.2%}, most over {max(some):+.2%}, most under {min(some):+.2%}, of {len(some)}"
        )
    print(f"{time.process_time() - began:.0f} CPU-s")
    return 0 if min(flat) > -0.03 and statistics.median(abs(error) for error in flat) <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
