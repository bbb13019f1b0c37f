"""The base of BabyAI's students: a Llama of 0.3 million random weights, and a tokenizer that knows its pages' words.

    python -m benchmarks.babyai_base outputs/babyai_base      # then: python -m benchmarks.students --config ...

The merges are learnt from what minigrid's bot sees and does in layouts far behind those that any configuration names.
The weights are drawn: all that a student can do it learns by cloning, as `configs/mrp.yaml`'s does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from examples.hub_models import hub_model
from r2v.envs.babyai import BabyAI, call, laid_out, view
from r2v.llm.types import Request
from r2v.policy.prompt_encoder import build_messages

FIRST_LAYOUT, LAYOUTS = 500_000, 60
VOCABULARY = 500
SHAPE = {"hidden_size": 64, "intermediate_size": 192, "head_dim": 16, "max_position_embeddings": 1024}


def conversations(levels: str) -> Iterator[str]:
    """Goals, pages and actions of the bot."""
    benchmark = BabyAI(levels=levels, instances=1)
    for first in benchmark.tasks():
        for layout in range(FIRST_LAYOUT, FIRST_LAYOUT + LAYOUTS):
            grid = laid_out(first.payload["level"], layout)
            goal = f'{grid.mission} (layout "{first.payload["level"]} {layout}")'
            seen, done = [view(grid)], list[str]()
            for _ in range(30):
                done.append(benchmark.expert(Request(messages=build_messages(goal, seen, done), key=("base",))))
                tool = json.loads(done[-1])["tool"]
                over = grid.step(("left", "right", "forward", "pick", "drop", "toggle", "wait").index(tool))[2]
                if over:
                    break
                seen.append(view(grid))
            yield "\n".join([goal, *seen, *done])


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--levels", default="GoToLocal")
    asked = parser.parse_args()
    texts = [*conversations(asked.levels), call("wait")]
    print(hub_model("llama", asked.folder, texts, vocabulary=VOCABULARY, **SHAPE))


if __name__ == "__main__":
    main()
