"""A benchmark of one's own: carts of parcels, each to be put into the bin that its label names.

    r2v collect --num-episodes 20 --seeds 1 --overrides env.benchmark=examples.own_benchmark:Parcels

A benchmark is a name, a version, capabilities, `tasks()` and `make()`; see docs/quickstart-benchmark.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from r2v.data.action import parse_action
from r2v.envs.base import Capabilities, Info, Task
from r2v.llm.types import Request
from r2v.randomness import uniform
from r2v.wire.message import ToolSpec

BINS = 9
TOOLS = (
    ToolSpec(name="scan", description="Read a smudged label."),
    ToolSpec(name="put", description="Put the parcel into a bin.", parameters={"type": "object"}),
)


def put(number: int) -> str:
    """Return the action that puts the parcel into a bin."""
    return json.dumps({"tool": "put", "bin": number}, separators=(",", ":"))


def read_label(request: Request) -> int | None:
    """Return the bin on the newest page; None if it is smudged, or the page is damaged."""
    label = re.search(r"bin (\d)", request.messages[-1].text)
    return int(label[1]) if label else None


class Cart:
    """The environment: one parcel a page; about a third of the labels can only be read by scanning them."""

    def reset(self, *, seed: int, task: Task) -> tuple[str, Info]:
        draws = [uniform("parcels", task.task_id, seed, index) for index in range(task.payload["parcels"])]
        self.bins = [1 + int(draw * BINS) for draw in draws]
        self.smudged = [draw * BINS % 1 < 0.35 for draw in draws]
        self.right: list[bool] = []
        return self.page(), Info()

    def page(self) -> str:
        at = len(self.right)
        if at == len(self.bins):
            return "the cart is empty"
        return f"parcel {at + 1} of {len(self.bins)}: bin {'?' if self.smudged[at] else self.bins[at]}"

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        call, at = parse_action(action), len(self.right)
        if call.action_type == "scan":
            self.smudged[at] = False
        else:  # anything but a scan, malformed text included, puts the parcel somewhere
            self.right.append(call.arguments.get("bin") == self.bins[at])
        over = len(self.right) == len(self.bins)
        success = all(self.right) if over else None
        return self.page(), float(bool(success)), over, False, Info(success=success)

    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return TOOLS


class Parcels:
    """The benchmark: its tasks, its environment, and an expert that may stand in for the teacher."""

    name, version, capabilities = "parcels", "1", Capabilities(expert=True)

    def __init__(self, num_tasks: int = 200, parcels: int = 4) -> None:
        self.num_tasks, self.parcels = num_tasks, parcels

    def tasks(self) -> Sequence[Task]:
        payload = {"parcels": self.parcels}
        return [Task(task_id=f"cart-{i:04d}", goal=f"sort cart {i}", payload=payload) for i in range(self.num_tasks)]

    def make(self) -> Cart:
        return Cart()

    def expert(self, request: Request) -> str:
        label = read_label(request)
        return '{"tool":"scan"}' if label is None else put(label)
