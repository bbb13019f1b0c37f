"""Pretraining transcripts: random tool calls in real environments, with arguments copied from pages."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from benchmarks.recipes.tiny import build_tokenizer
from r2v.config import CategoryConfig, PerturbationsConfig
from r2v.envs.base import Environment, Task
from r2v.envs.desk import Desk
from r2v.envs.desk.tasks import make_tasks
from r2v.envs.desk.tools import ARGUMENTS
from r2v.envs.desk.vocabulary import WORDINGS, line, parse, parse_goal
from r2v.perturb.live import wrap
from r2v.randomness import generator

CALLS = 10
"""Calls in a transcript."""
RECENT = 8
"""Candidates for an argument: this number of the last lines that could give it."""

TranscriptFields = dict[str, str]

HAZARDS = PerturbationsConfig(
    tool_error=CategoryConfig(prob=0.0),
    stale_observation=CategoryConfig(prob=0.0),
    partial_observation=CategoryConfig(prob=0.0),
    prompt_injection=CategoryConfig(prob=0.0),
    shuffled_dom=CategoryConfig(prob=0.2),
    distractor=CategoryConfig(prob=0.4),
)
"""Look-alikes only, which occur in any world. Errors, cuts and plants are left to training."""


def transcript(world: Environment, task: Task, seed: int) -> tuple[list[str], list[str]]:
    """Return (observations, actions) of one random play; one more observation than actions."""
    draw = generator("transcript", task.task_id, seed)
    observation, _ = world.reset(seed=seed, task=task)
    observations: list[str] = [observation]
    actions: list[str] = []
    seen = [parse_goal(task.goal)]
    over = False
    while not over and len(actions) < CALLS:
        seen += [fields for fields in map(parse, observation.splitlines()) if fields]
        actions.append(_call(seen, draw))
        observation, _, terminated, truncated, _ = world.step(actions[-1])
        observations.append(observation)
        over = terminated or truncated
    return observations, actions


def _call(seen: Sequence[TranscriptFields], draw: random.Random) -> str:
    """Return a call of a random tool whose arguments can be copied from one line each."""
    tools = [tool for tool in ARGUMENTS if tool != "done"]
    while True:
        tool = draw.choice(tools)
        arguments = _arguments(tool, seen, draw)
        if arguments is not None:
            return line(tool=tool, **arguments)


def _arguments(tool: str, seen: Sequence[TranscriptFields], draw: random.Random) -> TranscriptFields | None:
    """Return arguments for the tool; those that belong together come from one line, which agrees with earlier copies
    if any line does."""
    groups = {
        "get": (("name", "team", "item", "id"),),
        "reply": (("name", "id"),),
        "close": (("record", "name", "team", "item", "id"),),
        "assign": (("record", "name", "team", "item", "id"), ("state", "tech")),
        "decide": (("record", "name", "team", "item", "id", "status"), ("rule", "status", "verb")),
        "find": (("kind", "name"),),
    }.get(tool, tuple((name,) for name in ARGUMENTS[tool]))
    arguments: TranscriptFields = {"text": draw.choice(WORDINGS)}
    for group in groups:
        lines = [fields for fields in seen if all(name in fields for name in group)][-RECENT:]
        if not lines:
            return None
        agreeing = [
            fields for fields in lines if all(arguments.get(name, fields[name]) == fields[name] for name in group)
        ]
        arguments |= draw.choice(agreeing or lines)
    return {name: arguments[name] for name in ARGUMENTS[tool]}


def fresh_tasks(purpose: str, count: int) -> list[Task]:
    """Return `count` tasks whose goals differ from every goal of the benchmark."""
    goals = {task.goal for task in Desk().tasks()}
    spare = make_tasks(purpose, count + count // 10 + 10, 0)
    return [task for task in spare if task.goal not in goals][:count]


@cache
def _world() -> Environment:
    desk = Desk(version="pretrain", num_tasks=0, num_heldout=0)
    return wrap(desk.make(), desk, HAZARDS, "noisy", 0)


def transcript_document(task: Task, seed: int) -> tuple[list[int], list[int]]:
    """Return (token ids, positions of arguments) of a transcript; tool names are no targets."""
    observations, actions = transcript(_world(), task, seed)
    tokens = _encode("<goal>" + task.goal)
    targets: list[int] = []
    for observation, action in zip(observations, [*actions, None], strict=True):
        tokens += _encode("<obs>" + observation)
        if action is not None:
            call = _encode(f"<act>{action}<eos>")
            targets += range(len(tokens) + 2, len(tokens) + len(call) - 2)
            tokens += call
    return tokens, targets


def _encode(text: str) -> list[int]:
    ids: list[int] = _tokenizer()(text).input_ids
    return ids


_tokenizer = cache(build_tokenizer)
