"""Task states: points of a benchmark's episodes as problems, to which an answer is the next action.

    state = TaskState(spec=spec, actions=("open ticket 7",), messages=view.messages)
    state.problem().id           # names the task, its seed, the perturbations' and the step
    TaskPrompter(encoder, states).answer(state.problem())     # the prompt that the policy acts on in an evaluation

The first answer is what the actor would do, the guidance hints to it (step-level guidance), and the next answer is what
it does instead. There is no reference answer: what an action is worth is found by playing it
(`r2v.hrl.rollout.task_rollout`).
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
    """A point of an episode: what is played, what was done so far, and the conversation that it led to."""

    spec: EpisodeSpec
    actions: tuple[str, ...]
    messages: tuple[Message, ...]

    @property
    def id(self) -> str:
        """Names the state."""
        task, seed, perturbed = self.spec.task.task_id, self.spec.seed, self.spec.perturbation_seed
        return f"{episode_id(task, seed, perturbed)}#{len(self.actions)}"

    def problem(self) -> Problem:
        """The state as a problem. Its text is for people: prompts are made of the messages."""
        text = "\n".join(f"{message.role}: {message.text}" for message in self.messages)
        return Problem(id=self.id, text=text, answer="", split="train")

    def plain(self) -> dict[str, Any]:
        """The state as JSON has it; of what is played, the names alone."""
        return {
            "task_id": self.spec.task.task_id,
            "seed": self.spec.seed,
            "perturbation_seed": self.spec.perturbation_seed,
            "actions": list(self.actions),
            "messages": [asdict(message) for message in self.messages],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any], spec: EpisodeSpec) -> TaskState:
        """The state that `plain` was made of; `spec` is the one of its task."""
        return cls(
            spec=replace(spec, perturbation_seed=plain["perturbation_seed"]),
            actions=tuple(plain["actions"]),
            messages=tuple(Message(**message) for message in plain["messages"]),
        )


class TaskPrompter:
    """Makes the prompts of task states: the first answer's is the one that the policy acts on everywhere, later ones
    go on from it as a conversation."""

    def __init__(self, encoder: Encoder, states: Iterable[TaskState]) -> None:
        self._encoder, self._messages = encoder, {state.id: state.messages for state in states}

    def answer(self, problem: Problem, rounds: Sequence[Round] = ()) -> tuple[int, ...]:
        """The prompt for an action, after these rounds of action and hint."""
        return self._ids(self._conversation(problem, rounds))

    def hint(
        self, problem: Problem, rounds: Sequence[Round], answer: str, score: float | None = None
    ) -> tuple[int, ...]:
        """The prompt for a hint to the action `answer`; without instructions where a long goal leaves no room for
        them."""
        asked = [Message(role="assistant", content=answer), Message(role="user", content=hint_request(score))]
        said = [*self._conversation(problem, rounds), *asked]
        try:
            return self._ids([Message(role="system", content=GUIDANCE_INSTRUCTIONS), *said])
        except InputError:
            return self._ids(said)

    def _conversation(self, problem: Problem, rounds: Sequence[Round]) -> list[Message]:
        said = list(self._messages[problem.id])
        for answer, hint in rounds:
            said.append(Message(role="assistant", content=answer))
            said.append(Message(role="user", content=revision_request(hint)))
        return said

    def _ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self._encoder(messages))


def divided(states: Sequence[TaskState], settings: ProblemsConfig) -> tuple[list[TaskState], list[TaskState]]:
    """(training states, held-out states): no task is on both sides, and its id decides on which it is. Raises
    InputError where there are too few."""
    tasks: dict[str, list[TaskState]] = {}
    for state in sorted(states, key=lambda one: digest("held out", one.spec.task.task_id)):
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
    """Keep the states in an attempt's folder: a run that is resumed trains on the same ones."""
    write_lines(folder / STATES_FILE, (json.dumps(state.plain()) for state in states))


def read_states(folder: Path, specs: Sequence[EpisodeSpec]) -> list[TaskState] | None:
    """The states that lie in a folder, of these episodes; None where there are none."""
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
