"""Prefix that successive prompts of long pages share, and CPU time of making a prompt.

    python benchmarks/prefixes.py                        # every chat template that TRL ships
    python benchmarks/prefixes.py --templates llama3_1   # only these
    python benchmarks/prefixes.py --steps 30

`shared` is the mean share of a prompt that the next prompt begins with, over an episode of pages of 4,000 tokens in
16k and 32k contexts: the share that a model need not read again. The next columns are CPU-milliseconds per prompt with
pages of 20,000 tokens, in a context of 4k, a fifth of one page, and of 32k, which holds one; the last is one
tokenisation of such a page. Pages are cut from this repository's docs; the tokenizer is that of
benchmarks/encode.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.encode import learnt_texts, shipped, tokenizer
from r2v.policy.prompt_encoder import Encoder, build_messages

RESERVE = 256


def pages(tokenizer: Any, text: str, tokens: int, steps: int) -> list[str]:
    """Return distinct observations of about `tokens` tokens each."""
    each = len(text) * tokens // len(tokenizer(text, add_special_tokens=False)["input_ids"])
    return [f"page {i}\n" + (text[997 * i :] + text[: 997 * i])[:each] for i in range(steps)]


def alike(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def shared(prompts: Sequence[Sequence[int]]) -> float:
    """Return the mean share of a prompt that the next one begins with."""
    return sum(alike(a, b) / len(a) for a, b in pairwise(prompts)) / (len(prompts) - 1)


def milliseconds(work: Callable[[], object]) -> float:
    """Return the CPU-milliseconds of a call."""
    start = time.process_time()
    work()
    return 1e3 * (time.process_time() - start)


def episode(encoder: Encoder, seen: Sequence[str]) -> list[list[int]]:
    """Return the prompt of each step."""
    actions = [f'{{"tool":"open","page":{i}}}' for i in range(len(seen))]
    return [encoder(build_messages("read the manual", seen[: t + 1], actions[:t])) for t in range(len(seen))]


def measure(tokenizer: Any, text: str, steps: int) -> str:
    """Return one row of the table."""
    short, long = pages(tokenizer, text, 4000, steps), pages(tokenizer, text, 20000, 8)
    cells = [
        f"{shared(episode(Encoder(tokenizer, max_seq_len=length, reserve=RESERVE), short)):6.2f}"
        for length in (1 << 14, 1 << 15)
    ]
    for length in (1 << 12, 1 << 15):
        encoder = Encoder(tokenizer, max_seq_len=length, reserve=RESERVE)
        cells.append(f"{milliseconds(lambda encoder=encoder: episode(encoder, long)) / len(long):6.1f}")  # type: ignore[misc]
    bound = milliseconds(lambda: [tokenizer(page, add_special_tokens=False) for page in long]) / len(long)
    return " ".join([*cells, f"{bound:6.1f}", "joined" if encoder.concatenative else "rendered"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--templates", nargs="*", help="names of templates")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    texts, bpe = learnt_texts()
    print(f"{'':24} shared 16k, 32k | ms at 4k, 32k, page alone")
    for name, template in shipped().items():
        if not options.templates or name in options.templates:
            print(f"{name:24} {measure(tokenizer(bpe, template), ' '.join(texts), options.steps)}", flush=True)


if __name__ == "__main__":
    main()
