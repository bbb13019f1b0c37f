"""SWE-bench as R2V sees it: instances as tasks, worlds with a shell, and an expert who knows the patches."""

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
    `instances`: ids, None for all. `environment`: auto, bubblewrap, docker, apptainer or custom (`opening`); `images`:
    the folder of apptainer's files. Seconds are of one command, and of all tests of a grading.
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
        """Whether the tasks can be listed on this machine, without asking a hub."""
        if dataset == BUNDLED_SET:
            return (swebench_home() / "instances.jsonl").exists()
        return isinstance(dataset, str) and dataset.endswith((".json", ".jsonl"))

    @staticmethod
    def require_set_up(dataset: object = BUNDLED_SET, **_: object) -> None:
        """Raises UsageError where what grades, or the bundled set, is not installed."""
        if dataset == BUNDLED_SET:
            bundled_instances()
        require_grading()

    @cached_property
    def instances(self) -> dict[str, Instance]:
        """The instances by id. Raises as `load_instances` does."""
        self.require_set_up(self._dataset)
        official_grading()  # before anything is played
        listed = chosen(load_instances(self._dataset, self._split), self._ids)
        return {instance.instance_id: instance for instance in listed}

    @cached_property
    def capabilities(self) -> Capabilities:
        """Worlds in the sandbox can be copied; containers are played again."""
        walled = all(self.opener.kind(instance) == "bubblewrap" for instance in self.instances.values())
        expert = all(instance.patch for instance in self.instances.values())
        return Capabilities(snapshot=walled, expert=expert, waits=not walled, deterministic=walled)

    def tasks(self) -> Sequence[Task]:
        """One task an instance, in the data set's order."""
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
        """Raises EnvironmentFault where instances are played in a sandbox, and there is none."""
        walled = any(self.opener.kind(instance) == "bubblewrap" for instance in self.instances.values())
        if walled and (problem := lacking()):
            raise EnvironmentFault(f"env.benchmark=swebench: {problem}")

    def make(self) -> SweEnvironment:
        """A world without a repository yet."""
        return SweEnvironment(self.instances, self.opener, **self._limits)

    def expert(self, request: Request) -> str:
        """The stand-in teacher's action. Raises UsageError for a goal that no instance has."""
        texts = {message.text for message in request.messages if message.role == "user"}
        for instance in self.instances.values():
            if instance.problem_statement in texts or instance.instance_id in request.key:
                return next_action(instance, request.messages)
        raise UsageError("the expert of swebench was asked about no instance of this data set")

    def players(self) -> Mapping[str, Callable[[Request], str]]:
        """For `r2v check-env`: a player whose patch holds one new file, so that the tests are run."""
        return {"wrong": wrong_action}
