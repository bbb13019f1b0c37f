"""CPU time of making a prompt at each step of a long episode, under every chat template that TRL ships.

    python benchmarks/encode.py                         # 30 steps of about 970 tokens into 4,096
    python benchmarks/encode.py --only qwen3 llama3_1   # these templates

The bound is one tokenisation of the finished prompt. `joined`: "yes" if prompts are joined from segments, each
tokenised once; "no" if they are rendered whole. The last columns are the tokens that cloning reads in a row for each
step and in prefix trees: of this episode, and of one of 12 short steps that fits whole, without tools. Texts are pages
of this repository's docs; the tokenizer is a BPE of 16,384 words learnt from them and the sources. The shares that
prompts have in common are measured by benchmarks/prefixes.py.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from r2v.envs.desk import Desk
from r2v.policy.prefix_tree import IGNORED, Row, lay_out
from r2v.policy.prompt_encoder import Encoder, build_messages
from r2v.wire.message import Message

LIMIT, RESERVE = 4096, 96
_CONTROL = re.compile(r"<[|｜]?[\w▁]{1,40}[|｜]?>|</[a-z_]{2,24}>|\[/?[A-Z_]{2,24}\]")


def shipped() -> dict[str, str]:
    """Return TRL's templates by name, without the variants made for training."""
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None
    files = sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja"))
    return {file.stem: file.read_text() for file in files if not file.stem.endswith("_training")}


def learnt(texts: Sequence[str]) -> str:
    """Return a byte-level BPE, as JSON."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=16384, initial_alphabet=alphabet))
    return str(inner.to_str())


def learnt_texts() -> tuple[list[str], str]:
    """Return the pages of the docs, and a BPE of them and the sources."""
    texts = [path.read_text() for path in sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))]
    sources = [path.read_text() for path in sorted((Path(__file__).parents[1] / "r2v").rglob("*.py"))]
    return texts, learnt([*texts, *sources])


def tokenizer(bpe: str, template: str) -> Any:
    """Return the BPE with a template and a token for each of its control words."""
    inner = Tokenizer.from_str(bpe)
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant", "tool", "observation")]
    words = list(dict.fromkeys([*_CONTROL.findall(template), *roles]))
    inner.add_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    end = next((word for word in ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>") if word in words), "<eos>")
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token=end, chat_template=template)


def pages(texts: Sequence[str], steps: int) -> list[str]:
    """Return one observation of about 970 tokens per step."""
    whole = "\n".join(texts)
    return [whole[3300 * i : 3300 * (i + 1)] for i in range(steps)]


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def steps_row(encoder: Encoder, context: Sequence[Message], action: str) -> Row:
    """Return the training row that cloning reads for a step."""
    ids, target = encoder(context), encoder.action_ids(action)
    return [*ids, *target], [IGNORED] * len(ids) + target


def in_trees(rows: Sequence[Row]) -> str:
    """Return the tokens of the rows read separately, and in prefix trees."""
    return f"{sum(len(ids) for ids, _ in rows)}>{sum(len(tree.ids) for tree in lay_out(rows, LIMIT))}"


def measure(tokenizer: Any, seen: Sequence[str], actions: Sequence[str]) -> str:
    """Return one row of the table."""
    tools = Desk().make().tool_specs()
    contexts = [build_messages("read the manual", seen[: t + 1], actions[:t]) for t in range(len(seen))]
    fresh = Encoder(tokenizer, max_seq_len=LIMIT, reserve=RESERVE, tools=tools)
    cost = seconds(lambda: [fresh(context) for context in contexts]) / len(contexts)
    text = tokenizer.decode(fresh(contexts[-1]))
    bound = seconds(lambda: [tokenizer(text, add_special_tokens=False) for _ in range(5)]) / 5
    rows = [steps_row(fresh, context, action) for context, action in zip(contexts, actions, strict=True)]
    short = [page[:260] for page in seen[:12]]
    whole = Encoder(tokenizer, max_seq_len=LIMIT, reserve=RESERVE)
    fitting_rows = [
        steps_row(whole, build_messages("read the manual", short[: t + 1], actions[:t]), actions[t]) for t in range(12)
    ]
    fold = fresh.template.fold
    folded = "+".join(name for name in ("tool", "system", "parts") if getattr(fold, name)) or "-"
    tools_by = "template" if fresh.template.native_tools else "prompt" if fresh.template.tools else "none"
    return (
        f"{folded:12} {tools_by:9} {'yes' if fresh.concatenative else 'no':7} {1e3 * cost:6.1f} {cost / bound:6.1f} "
        f"{in_trees(rows):8} {in_trees(fitting_rows):>14}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of templates")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    texts, bpe = learnt_texts()
    seen = pages(texts, options.steps)
    actions = [f'{{"tool":"open","page":{i}}}' for i in range(options.steps)]
    print(f"{'':24} {'folded':12} {'tools by':9} joined  ms/step /bound tokens>in trees  12 short steps")
    for name, template in shipped().items():
        if not options.only or name in options.only:
            print(f"{name:24} {measure(tokenizer(bpe, template), seen, actions)}", flush=True)


if __name__ == "__main__":
    main()
