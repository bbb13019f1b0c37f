"""Small real models on disk, problems and a checker for the tests of roles and episodes; run as a script, the ranks of
a launch that play together."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import Lfm2Config, Lfm2ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from r2v import distributed
from r2v.config import CriticConfig, GuidanceConfig, HierarchicalConfig, PolicyConfig
from r2v.distributed import rank, run_rank
from r2v.hrl.models.roles import Roles, build_roles
from r2v.hrl.parallel.placement import Devices
from r2v.hrl.rollout.episode import GuidedEpisode, gather_episodes, play_many
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import Prompter

TOY_SPECIAL_TOKENS = ("<pad>", "<unk>", "<eos>", "<user>", "<reply>")
WORDS = (
    "Answer",
    "again",
    "Give",
    "a",
    "hint",
    "Hint",
    "Score",
    ":",
    ".",
    "0",
    "1",
    "5",
    "keep",
    "look",
    "sum",
    "is",
    "how",
    "many",
    "apples",
    "ann",
    "bob",
    *(f"w{i}" for i in range(20)),
)
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% elif m.role == 'assistant' %}"
    "<reply>{{ m.content }}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}<reply>{% endif %}"
)
PROBLEMS = [
    Problem(id=f"p{i}", text="how many " + " ".join(f"w{(i + j) % 19}" for j in range(1 + i % 4)), answer="w19")
    for i in range(5)
]
CPU = Devices.all_on("cpu")


def tokenizer() -> Any:
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate((*TOY_SPECIAL_TOKENS, *WORDS))}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        additional_special_tokens=list(TOY_SPECIAL_TOKENS[3:]),
        chat_template=TEMPLATE,
    )


def save_model(folder: Path, kind: str = "llama", seed: int = 0) -> Path:
    """Save random float32 weights as a directory for policy.model_name. The end token is likely."""
    shape: dict[str, Any] = {
        "vocab_size": len(TOY_SPECIAL_TOKENS) + len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 2,
    }
    torch.manual_seed(seed)
    model: Any = (
        LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False))
        if kind == "llama"
        else Lfm2ForCausalLM(
            Lfm2Config(**shape, block_auto_adjust_ff_dim=False, layer_types=["conv", "full_attention"])
        )
    )
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def settings(placement: str = "auto", **changes: Any) -> HierarchicalConfig:
    base: dict[str, Any] = {
        "guidance": GuidanceConfig(hints=3),
        "critic": CriticConfig(max_tokens=16, draws=2),
        "answer_tokens": 6,
        "hint_tokens": 4,
    }
    return HierarchicalConfig(placement=placement, **{**base, **changes})  # type: ignore[arg-type]


def build(
    model: Path, placement: str = "auto", lora: int = 4, seed: int = 3, weights: Path | None = None, **changes: Any
) -> Roles:
    policy = PolicyConfig(model_name=str(model), lora_r=lora, device="cpu", dtype="float64")
    return build_roles(policy, settings(placement, **changes), seed, weights, CPU)


def checker(problem: Problem, answer: str) -> float:
    """Return 0, 0.5 or 1, by the bytes of the answer."""
    return sum(answer.encode()) % 3 / 2


def stirred(roles: Roles) -> Roles:
    """Return roles with random adapters: fresh ones add nothing to the base."""
    for place, role in enumerate(("actor", "guidance")):
        generator = torch.Generator().manual_seed(place)
        with torch.no_grad():
            for tensor in roles.parameters(role):  # type: ignore[arg-type]
                tensor += 0.05 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    return roles


def played(model: Path, **options: Any) -> list[GuidedEpisode]:
    roles = stirred(build(model))
    return play_many(
        PROBLEMS, roles=roles, prompter=Prompter(roles.tokenizer), checker=checker, h=settings(), key=(3, 0), **options
    )


def plain(episodes: list[GuidedEpisode]) -> list[Any]:
    found: list[Any] = json.loads(json.dumps([asdict(one) for one in episodes]))
    return found


def failing(problem: Problem, answer: str) -> float:
    if problem.id == "p3":
        raise ZeroDivisionError("no units\nwere given")
    return 0.0


def _as_rank(what: str, model: Path, out: Path) -> None:
    distributed.join("cpu")
    if what == "failing":
        roles = build(model)
        gather_episodes(
            play_many(
                PROBLEMS, roles=roles, prompter=Prompter(roles.tokenizer), checker=failing, h=settings(), key=(3, 0)
            )
        )
        return
    own = played(model)
    gathered = gather_episodes(own)
    (out / f"{rank()}.json").write_text(
        json.dumps({"own": len(own), "ranks": distributed.ranks(), "all": plain(gathered)})
    )


if __name__ == "__main__":
    sys.exit(run_rank(lambda: _as_rank(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
