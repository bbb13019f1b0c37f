"""Plain BrowserGym as the world of a worker: the peer of `miniwob_sweep.py`, without any code of R2V."""

from __future__ import annotations

import importlib
from typing import Any


class PlainWorld:
    """`gymnasium.make` with every default, and its text as AgentLab makes it."""

    def __init__(self) -> None:
        importlib.import_module("browsergym.miniwob")
        self._gymnasium = importlib.import_module("gymnasium")
        self._flatten = importlib.import_module("browsergym.utils.obs").flatten_axtree_to_str
        self._environment: Any = None

    def reset(self, seed: int, task: dict[str, Any]) -> dict[str, Any]:
        """Make a new environment, one per episode."""
        self.close()
        self._environment = self._gymnasium.make(task["payload"]["id"])
        observation, _ = self._environment.reset(seed=seed)
        return {"observation": self._flatten(observation["axtree_object"])}

    def step(self, action: str) -> dict[str, Any]:
        """Make a step of BrowserGym."""
        observation, reward, terminated, truncated, _ = self._environment.step(action)
        text = self._flatten(observation["axtree_object"])
        return {"observation": text, "reward": reward, "terminated": bool(terminated), "truncated": bool(truncated)}

    def close(self) -> None:
        """Close its browsers."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None
