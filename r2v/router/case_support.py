"""Case support: the teacher's recorded steps that resemble a state, and the share of them that act as proposed.

    index = CaseIndex.of(recorded_steps(episodes), tools, seed=0)
    index.save(folder)
    nearest = CaseIndex.load(folder).nearest(goal, page, actions, tools, task_id)
    support(nearest, signature(proposal, goal, observations, tools))      # {"share": 0.85, "rank": 0, ...}

A state is three short texts: its newest page, its goal, and its last two tools with the step. Words that few goals
share are values: on the page they are replaced by a mark, in the goal they are left out. So two goals of one kind give
equal texts. Terms are words and pairs of words, weighted by tf-idf; terms of few tasks are dropped. The similarity is
the mean of the three cosines. No model is asked, and nothing depends on the benchmark: an action is compared by its
signature (`r2v.router.page_signals`).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from r2v.data.episode import COPIED, Episode
from r2v.errors import EmptyResult, InputError
from r2v.llm.answer_cache import AnswerCache, digest_of
from r2v.randomness import generator
from r2v.router.page_signals import signature, tool_of
from r2v.storage.files import replacing, write_json
from r2v.wire.message import ToolSpec

ARRAYS, NAMES = "cases.npz", "cases.json"
CASE_SCORE = ("cases.share", "cases.similarity_mean")
"""The features that are a score by themselves."""
NEIGHBOURS = 20
LARGEST_INDEX = 4_000
"""Most steps of an index, drawn by key from more: a look-up compares a state with each, and 8,000 gain nothing on
desk."""
COMMON_IN_GOALS = 0.25
"""Share of the tasks' goals below which a word counts as a value."""
COMMON_ON_PAGES = 0.05
"""Share of tasks below which a term is dropped, such as ids and rare names."""
_FORMAT = 1
_IN_NAMES = ("goal_words", "terms", "signatures", "tasks")
_IN_ARRAYS = ("idf", "values", "steps", "ends", "signature_of", "task_of")
_MARK = "<goal>"
_WORD = re.compile(r"\w+(?:[-.@']\w+)*")
_LATE = 12
"""Step from which on all steps count as one term."""
_TEXTS = 3
"""The texts of a state: page, goal, and the last two tools with the step."""

Nearest = tuple[tuple[str, float], ...]
"""(signature of the teacher's action, similarity) of the nearest steps, the nearest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStep:
    """A recorded state of the teacher, and its action there."""

    task_id: str
    goal: str
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    action: str


def recorded_steps(episodes: Iterable[Episode]) -> Iterator[RecordedStep]:
    """Yield the steps that a teacher decided; copied ones are not its own."""
    for episode in episodes:
        observations = tuple(step.observation.raw_text for step in episode.steps)
        actions = tuple(step.action.raw_text for step in episode.steps)
        for index, step in enumerate(episode.steps):
            if step.label is None or step.label.label_source != COPIED:
                yield RecordedStep(
                    task_id=episode.metadata.task_id,
                    goal=episode.metadata.goal,
                    observations=observations[: index + 1],
                    actions=actions[:index],
                    action=actions[index],
                )


def support(nearest: Nearest, proposed: str) -> dict[str, float]:
    """Return figures of a proposal with this signature: the share of the nearest steps that act so, the number of
    signatures more frequent among them, the most frequent one's share, and the similarities."""
    counts = Counter(name for name, _ in nearest)
    similarities = [similarity for _, similarity in nearest]
    return {
        "share": counts[proposed] / len(nearest),
        "rank": sum(count > counts[proposed] for count in counts.values()),
        "top_share": max(counts.values()) / len(nearest),
        "similarity_max": max(similarities),
        "similarity_mean": math.fsum(similarities) / len(nearest),
    }


@dataclass(frozen=True, kw_only=True)
class CaseIndex:
    """The teacher's steps as weighted terms, with the signature of each step's action."""

    goal_words: tuple[str, ...]
    """Words of goals that are not values."""
    terms: tuple[str, ...]
    signatures: tuple[str, ...]
    tasks: tuple[str, ...]
    idf: NDArray[np.float32]
    values: NDArray[np.float32]
    """With `steps` and `ends` the weights as a sparse matrix, terms x steps; each text of a step has length 1."""
    steps: NDArray[np.int32]
    ends: NDArray[np.int32]
    signature_of: NDArray[np.int32]
    """Per step, as an index of `signatures`."""
    task_of: NDArray[np.int32]
    remembered: AnswerCache = field(default_factory=AnswerCache, compare=False, repr=False)

    @classmethod
    def of(cls, steps: Iterable[RecordedStep], tools: Sequence[ToolSpec], seed: int) -> CaseIndex:
        """Fit the index. Raises EmptyResult for steps of fewer than two tasks."""
        from scipy import sparse

        chosen = _drawn(list(steps), seed)
        goals = {step.task_id: step.goal for step in chosen}
        if len(goals) < 2:
            raise EmptyResult(f"case support: {len(chosen)} steps of {len(goals)} tasks; record more tasks")
        in_goals = Counter(word for goal in goals.values() for word in set(_words(goal)))
        goal_words = tuple(sorted(w for w, count in in_goals.items() if count >= COMMON_IN_GOALS * len(goals)))
        texts = [_texts(step.goal, step.observations[-1], step.actions, goal_words, tools) for step in chosen]
        tasks_of_term: dict[str, set[str]] = {}
        for step, text in zip(chosen, texts, strict=True):
            for term in set().union(*text):
                tasks_of_term.setdefault(term, set()).add(step.task_id)
        least = min(len(goals), max(2, COMMON_ON_PAGES * len(goals)))
        terms = tuple(sorted(term for term, tasks in tasks_of_term.items() if len(tasks) >= least))
        steps_of_term = Counter(term for text in texts for term in set().union(*text))
        idf = np.array([math.log((1 + len(chosen)) / (1 + steps_of_term[term])) + 1 for term in terms], np.float32)
        numbers = {term: number for number, term in enumerate(terms)}
        weighted = [_weighted(text, numbers, idf) for text in texts]
        ends = np.cumsum([0, *(len(term_numbers) for term_numbers, _ in weighted)])
        columns, values = (np.concatenate(parts) for parts in zip(*weighted, strict=True))
        by_term = sparse.csr_matrix((values, columns, ends), shape=(len(chosen), len(terms))).T.tocsr()
        named = [signature(step.action, step.goal, step.observations, tools) for step in chosen]
        signatures, tasks = tuple(sorted(set(named))), tuple(sorted(goals))
        return cls(
            goal_words=goal_words,
            terms=terms,
            signatures=signatures,
            tasks=tasks,
            idf=idf,
            values=by_term.data,
            steps=by_term.indices,
            ends=by_term.indptr,
            signature_of=np.array([signatures.index(name) for name in named], np.int32),
            task_of=np.array([tasks.index(step.task_id) for step in chosen], np.int32),
        )

    def nearest(self, goal: str, page: str, actions: Sequence[str], tools: Sequence[ToolSpec], task_id: str) -> Nearest:
        """Return the nearest steps of other tasks: a task's own record would support its teacher's every action, and no
        deployed agent has that record."""
        own = self._task_numbers.get(task_id, -1)
        key = digest_of((), goal, page, actions[-2:], len(actions), own)
        nearest: Nearest | None = self.remembered.get(key)
        if nearest is None:
            text = _texts(goal, page, actions, self.goal_words, tools)
            nearest = self.remembered[key] = self._nearest(*_weighted(text, self._numbers, self.idf), own)
        return nearest

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {term: number for number, term in enumerate(self.terms)}

    @cached_property
    def _task_numbers(self) -> dict[str, int]:
        return {task: number for number, task in enumerate(self.tasks)}

    def _nearest(self, numbers: NDArray[np.int32], weights: NDArray[np.float32], own: int) -> Nearest:
        sums = np.zeros(len(self.task_of), np.float32)
        starts, counts = self.ends[numbers], np.diff(self.ends)[numbers]
        places = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        np.add.at(sums, self.steps[places], np.repeat(weights, counts) * self.values[places])
        similarities = np.round(sums / _TEXTS, 6)
        similarities[self.task_of == own] = -1
        count = min(NEIGHBOURS, int((similarities >= 0).sum()))
        candidates = np.flatnonzero(similarities >= np.partition(similarities, -count)[-count])
        nearest = candidates[np.argsort(-similarities[candidates], kind="stable")][:count]  # of equals, the first
        return tuple(
            (self.signatures[self.signature_of[step]], round(float(similarities[step]), 6)) for step in nearest.tolist()
        )

    def _check(self) -> None:
        """Raise ValueError if the arrays are not a sparse matrix of these terms and steps."""
        sizes = len(self.ends) == len(self.terms) + 1 and len(self.steps) == len(self.values) == self.ends[-1]
        in_order = self.ends[0] == 0 and bool((np.diff(self.ends) >= 0).all())
        within = not len(self.steps) or 0 <= self.steps.min() <= self.steps.max() < len(self.task_of)
        if not (sizes and in_order and within and len(self.signature_of) == len(self.task_of)):
            raise ValueError("its arrays do not fit each other")

    def save(self, folder: Path) -> None:
        """Write the index as plain arrays and JSON, the same bytes from the same steps."""
        with replacing(folder / ARRAYS) as file:
            np.savez(file, allow_pickle=False, **{name: getattr(self, name) for name in _IN_ARRAYS})
        write_json(folder / NAMES, {"format": _FORMAT, **{name: getattr(self, name) for name in _IN_NAMES}})

    @classmethod
    def load(cls, folder: Path) -> CaseIndex:
        """Read a saved index. Raises InputError where the files hold none."""
        try:
            names: Mapping[str, Any] = json.loads((folder / NAMES).read_text())
            if names["format"] != _FORMAT:
                raise ValueError(f"format {names['format']}, this R2V reads {_FORMAT}")
            with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
                held: dict[str, Any] = {name: arrays[name] for name in _IN_ARRAYS}
            held |= {name: tuple(names[name]) for name in _IN_NAMES}
            index = cls(**held)
            index._check()
        except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile) as error:
            raise InputError(f"{folder}: not an index of case support ({error}); make it again") from error
        return index


def _drawn(steps: list[RecordedStep], seed: int) -> list[RecordedStep]:
    if len(steps) <= LARGEST_INDEX:
        return steps
    return [
        steps[number] for number in sorted(generator(seed, "case support").sample(range(len(steps)), LARGEST_INDEX))
    ]


def _weighted(
    texts: Sequence[Sequence[str]], numbers: Mapping[str, int], idf: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the numbers of the terms in a state's texts, and their weights; each text has length 1."""
    term_numbers: list[int] = []
    weights: list[float] = []
    for text in texts:
        counts = Counter(numbers[term] for term in text if term in numbers)
        values = [(1 + math.log(count)) * float(idf[number]) for number, count in counts.items()]
        length = math.sqrt(math.fsum(value * value for value in values))
        term_numbers += counts
        weights += [value / length for value in values]
    return np.array(term_numbers, np.int32), np.array(weights, np.float32)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _texts(
    goal: str, page: str, actions: Sequence[str], goal_words: Sequence[str], tools: Sequence[ToolSpec]
) -> tuple[list[str], list[str], list[str]]:
    """Return the terms of a state's page, goal and past actions; those of goal and past have a letter as prefix."""
    of_goal = _words(goal)
    values = set(of_goal).difference(goal_words)
    of_page = [_MARK if word in values else word for word in _words(page)]
    of_kind = [f"g:{word}" for word in of_goal if word in goal_words]
    past = [tool_of(action, tools) for action in actions[-2:]]
    of_past = [*(f"a{back}:{tool}" for back, tool in enumerate(reversed(past))), f"a:{' '.join(past)}"]
    return _with_pairs(of_page), _with_pairs(of_kind), [*of_past, f"s:{min(len(actions), _LATE)}"]


def _with_pairs(words: Sequence[str]) -> list[str]:
    return [*words, *(f"{word} {following}" for word, following in zip(words, words[1:], strict=False))]
