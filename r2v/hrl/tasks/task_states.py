"""Task states: steps of a benchmark's episodes as problems, whose answers are the next action.

    state = TaskState(spec=spec, actions=("open ticket 7",), messages=view.messages)
    state.problem().id           # task, seed, perturbation seed and step
    TaskPrompter(encoder, states).answer(state.problem())     # the policy's prompt in an evaluation

The first answer is the actor's action, the guidance hints to it (step-level guidance), and the next answer is its
revised action. Without a reference answer, an action is scored by playing it (`r2v.hrl.rollout.task_rollout`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from r2v.config import ProblemsConfig
from r2v.data.episode import episode_id
from r2v.errors import InputError
from r2v.hrl.tasks.problems import Problem
from r2v.hrl.tasks.prompts import GUIDANCE_INSTRUCTIONS, Round, hint_request, revision_request
from r2v.policy.prompt_encoder import Encoder
from r2v.randomness import digest
from r2v.rollout.session import EpisodeSpec
from r2v.storage.files import write_lines
from r2v.wire.message import Message

STATES_FILE = "task_states.jsonl"


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """A step of an episode: its specification, the actions so far, and the resulting conversation."""

    spec: EpisodeSpec
    actions: tuple[str, ...]
    messages: tuple[Message, ...]

    @property
    def id(self) -> str:
        """Identifier from task, seeds and step."""
        task, seed, perturbed = self.spec.task.task_id, self.spec.seed, self.spec.perturbation_seed
        return f"{episode_id(task, seed, perturbed)}#{len(self.actions)}"

    def problem(self) -> Problem:
        """Return the state as a problem. Its text is for people; prompts are built from the messages."""
        text = "\n".join(f"{message.role}: {message.text}" for message in self.messages)
        return Problem(id=self.id, text=text, answer="", split="train")

    def plain(self) -> dict[str, Any]:
        """Return the state for JSON, with the specification's identifiers only."""
        return {
            "task_id": self.spec.task.task_id,
            "seed": self.spec.seed,
            "perturbation_seed": self.spec.perturbation_seed,
            "actions": list(self.actions),
            "messages": [asdict(message) for message in self.messages],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any], spec: EpisodeSpec) -> TaskState:
        """Return the state of a `plain` record. `spec`: that of its task."""
        return cls(
            spec=replace(spec, perturbation_seed=plain["perturbation_seed"]),
            actions=tuple(plain["actions"]),
            messages=tuple(Message(**message) for message in plain["messages"]),
        )


class TaskPrompter:
    """Prompts of task states: for the first answer the policy's usual prompt, which later ones continue as a
    conversation."""

    def __init__(self, encoder: Encoder, states: Iterable[TaskState]) -> None:
        self._encoder, self._messages = encoder, {state.id: state.messages for state in states}

    def answer(self, problem: Problem, rounds: Sequence[Round] = ()) -> tuple[int, ...]:
        """Return the prompt for an action after these rounds of action and hint."""
        return self._ids(self._conversation(problem, rounds))

    def hint(
        self, problem: Problem, rounds: Sequence[Round], answer: str, score: float | None = None
    ) -> tuple[int, ...]:
        """Return the prompt for a hint to the action `answer`, without instructions if a long goal leaves no room."""
        request = [Message(role="assistant", content=answer), Message(role="user", content=hint_request(score))]
        messages = [*self._conversation(problem, rounds), *request]
        try:
            return self._ids([Message(role="system", content=GUIDANCE_INSTRUCTIONS), *messages])
        except InputError:
            return self._ids(messages)

    def _conversation(self, problem: Problem, rounds: Sequence[Round]) -> list[Message]:
        messages = list(self._messages[problem.id])
        for answer, hint in rounds:
            messages.append(Message(role="assistant", content=answer))
            messages.append(Message(role="user", content=revision_request(hint)))
        return messages

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self._encoder(messages))


def divided(states: Sequence[TaskState], settings: ProblemsConfig) -> tuple[list[TaskState], list[TaskState]]:
    """Return (training states, held-out states), split by a hash of the task's id, so that no task is in both. Raises
    InputError if none is left to train on."""
    tasks: dict[str, list[TaskState]] = {}
    for state in sorted(states, key=lambda state: digest("held out", state.spec.task.task_id)):
        tasks.setdefault(state.spec.task.task_id, []).append(state)
    held_out: list[TaskState] = []
    trained: list[TaskState] = []
    for some in tasks.values():
        (held_out if len(held_out) < settings.held_out else trained).extend(some)
    if not trained:
        raise InputError(
            f"hierarchical.problems.path=tasks: {len(tasks)} tasks have {len(states)} states, "
            f"hierarchical.problems.held_out={settings.held_out} leaves none to train on; set it lower, or play more "
            "tasks (hierarchical.problems.num_tasks)"
        )
    return trained[: settings.count], held_out[: settings.held_out]


def write_states(folder: Path, states: Sequence[TaskState]) -> None:
    """Write the states into an attempt's folder, so that a resumed run trains on the same ones."""
    write_lines(folder / STATES_FILE, (json.dumps(state.plain()) for state in states))


def read_states(folder: Path, specs: Sequence[EpisodeSpec]) -> list[TaskState] | None:
    """Return the states in a folder; None without a file. Raises InputError for states of other episodes than
    `specs`."""
    path = folder / STATES_FILE
    if not path.exists():
        return None
    by_id: Mapping[tuple[Any, ...], EpisodeSpec] = {
        (spec.task.task_id, spec.seed, spec.perturbation_seed): spec for spec in specs
    }
    return [_state(line, path, by_id) for line in path.read_text().splitlines()]


def _state(line: str, path: Path, by_id: Mapping[tuple[Any, ...], EpisodeSpec]) -> TaskState:
    try:
        record = json.loads(line)
        return TaskState.of(record, by_id[record["task_id"], record["seed"], record["perturbation_seed"]])
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: a line is no state of a task that is played now ({error}); remove the file"
        ) from None
