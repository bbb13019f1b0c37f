"""SWE-bench's `Benchmark`: instances as tasks, worlds with a shell, and an expert that knows the patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from r2v.constraints import Range, require
from r2v.envs.base import Capabilities, Task
from r2v.envs.pace import PACES
from r2v.envs.swe.environment import SweEnvironment
from r2v.envs.swe.expert import next_action, wrong_action
from r2v.envs.swe.grading import official_grading, require_grading
from r2v.envs.swe.home import BUNDLED_SET, bundled_instances, swebench_home
from r2v.envs.swe.instances import Instance, chosen, load_instances
from r2v.envs.swe.opening import Opener
from r2v.errors import EnvironmentFault, UsageError
from r2v.llm.types import Request
from r2v.sandbox.process import lacking

_SECONDS = Range(at_least=1, at_most=86_400)


class SweBench:
    """Issues of real repositories. `dataset`: bundled, a file of instances, or a data set of the hub with its `split`;
    `instances`: ids, None for all. `environment`: auto, bubblewrap, docker, apptainer or custom (`opening`). `images`:
    the folder of apptainer's files. `command_seconds` limits one command, `test_seconds` all tests of a grading.
    """

    name = "swebench"
    version = "2"
    more_tasks = "take a larger env.options.dataset, or name more in env.options.instances"
    pace = PACES["swebench"]

    def __init__(
        self,
        *,
        dataset: str = BUNDLED_SET,
        split: str = "test",
        instances: Sequence[str] | None = None,
        environment: str = "auto",
        images: str = "data/swebench/images",
        command_seconds: int = 60,
        test_seconds: int = 1800,
        observation_chars: int = 10_000,
    ) -> None:
        require("env.options.command_seconds", _SECONDS, command_seconds)
        require("env.options.test_seconds", _SECONDS, test_seconds)
        require("env.options.observation_chars", Range(at_least=100, at_most=1_000_000), observation_chars)
        if instances is not None and (isinstance(instances, str) or not instances):
            raise UsageError(f"env.options.instances={instances!r:.40}: give a list of ids, or none for all")
        self._dataset, self._split, self._ids = dataset, split, instances
        self.opener = Opener(environment=environment, images=Path(images), timeout=command_seconds)
        self._limits = {"observation_chars": observation_chars, "test_seconds": test_seconds}

    @staticmethod
    def listed_here(dataset: object = BUNDLED_SET, **_: object) -> bool:
        """True if the tasks can be listed on this machine without a data set hub."""
        if dataset == BUNDLED_SET:
            return (swebench_home() / "instances.jsonl").exists()
        return isinstance(dataset, str) and dataset.endswith((".json", ".jsonl"))

    @staticmethod
    def require_set_up(dataset: object = BUNDLED_SET, **_: object) -> None:
        """Raise UsageError if the grading package or the bundled set is not installed."""
        if dataset == BUNDLED_SET:
            bundled_instances()
        require_grading()

    @cached_property
    def instances(self) -> dict[str, Instance]:
        """Return the instances by id. Raises as `load_instances` does."""
        self.require_set_up(self._dataset)
        official_grading()  # fail before any episode is played
        listed = chosen(load_instances(self._dataset, self._split), self._ids)
        return {instance.instance_id: instance for instance in listed}

    @cached_property
    def capabilities(self) -> Capabilities:
        """Return the capabilities. Worlds in the sandbox have snapshots; containers replay actions instead."""
        walled = all(self.opener.kind(instance) == "bubblewrap" for instance in self.instances.values())
        expert = all(instance.patch for instance in self.instances.values())
        return Capabilities(snapshot=walled, expert=expert, waits=not walled, deterministic=walled)

    def tasks(self) -> Sequence[Task]:
        """Return one task per instance, in the data set's order."""
        return [
            Task(
                task_id=instance.instance_id,
                goal=instance.problem_statement,
                template_id=instance.repo,
                split=instance.split,
                payload={"instance_id": instance.instance_id},
            )
            for instance in self.instances.values()
        ]

    def require_here(self) -> None:
        """Raise EnvironmentFault if an instance needs the sandbox and this machine has none."""
        walled = any(self.opener.kind(instance) == "bubblewrap" for instance in self.instances.values())
        if walled and (problem := lacking()):
            raise EnvironmentFault(f"env.benchmark=swebench: {problem}")

    def make(self) -> SweEnvironment:
        """Return a fresh world; `reset` opens its repository."""
        return SweEnvironment(self.instances, self.opener, **self._limits)

    def expert(self, request: Request) -> str:
        """Return the stand-in teacher's action. Raises UsageError for a request about no known instance."""
        texts = {message.text for message in request.messages if message.role == "user"}
        for instance in self.instances.values():
            if instance.problem_statement in texts or instance.instance_id in request.key:
                return next_action(instance, request.messages)
        raise UsageError("swebench: the expert's request is about no instance of this data set")

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """Return the contract check's wrong player; its patch adds one file, so that the tests run."""
        return {"wrong": wrong_action}
