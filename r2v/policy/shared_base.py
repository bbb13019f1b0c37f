"""Shared base: one frozen model in memory, and the adapters of all policies and verifiers on it.

The policy, its variants, the verifier and its folds are adapters of a few megabytes; the base is gigabytes. So a
process loads a base once and each of them is the base with one adapter active:

    loaded = acting_policy(config.policy, folder / "final")    # whole weights, or adapters on the shared base
    loaded = acting_policy(config.policy)                      # the base model

The base leaves memory with the last of them. Forward passes take turns: each runs with one adapter to its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from r2v.config import PolicyConfig
from r2v.errors import InputError
from r2v.policy.load import Loaded, device_of, load_policy, put_adapters_on
from r2v.storage.model_identity import require_base
from r2v.storage.weights import ADAPTERS


class SharedBase:
    """A base with any number of adapters on it. Made by `shared_base`."""

    def __init__(self, base: Loaded) -> None:
        self.base = base
        self._adapted: Any = None
        """The PeftModel around the base, once there is an adapter."""
        self._layers: list[Any] = []
        self._names: dict[Path, str] = {}
        self._active: str | None = None
        self._turn = threading.Lock()  # adapters are switched in place: one pass at a time

    def adapted(self, adapters: Path | None = None) -> AdaptedModel:
        """Return the base with the adapters of a folder, or without any. Raises InputError where they belong to
        another."""
        return AdaptedModel(self, None if adapters is None else self._name(adapters.resolve()), self.base.model)

    @contextmanager
    def active(self, adapter: str | None) -> Iterator[None]:
        """Hold the base alone in the block, with that adapter active and no other."""
        with self._turn:
            if adapter != self._active:
                for layer in self._layers:
                    layer.enable_adapters(adapter is not None)
                    if adapter is not None:
                        layer.set_adapter(adapter, inference_mode=True)
                self._active = adapter
            yield

    def _name(self, folder: Path) -> str:
        """Return the name of a folder's adapters on the base, loading them where they are not on it yet."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        with self._turn:
            if folder not in self._names:
                name = f"adapter{len(self._names)}"
                require_base(folder, self.base.name, self.base.base)
                try:
                    self._adapted = put_adapters_on(self._adapted or self.base.model, folder, name=name)
                except InputError:
                    _forget(self)  # refused adapters may be half loaded: this base must not be shared again
                    raise
                self._adapted.eval().requires_grad_(False)
                self._layers = [layer for layer in self._adapted.modules() if isinstance(layer, BaseTunerLayer)]
                self._names[folder] = name
                self._active = ""  # loading activates an adapter, so the next pass sets its own
            return self._names[folder]


class AdaptedModel:
    """A shared base with one adapter, or a part of it: called like a transformers model, and never trained."""

    def __init__(self, shared: SharedBase, adapter: str | None, part: Any) -> None:
        self._shared, self._adapter, self._part = shared, adapter, part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._shared.active(self._adapter):
            return self._part(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "peft_config":  # peft marks the shared base, which may carry other adapters
            raise AttributeError(name)
        return getattr(self._part, name)

    @property
    def base_model(self) -> AdaptedModel:
        """The same model without its language-model head."""
        return AdaptedModel(self._shared, self._adapter, self._part.base_model)

    def eval(self) -> AdaptedModel:
        """Return self, which is always in evaluation mode."""
        return self


_BASES: WeakValueDictionary[tuple[Any, ...], SharedBase] = WeakValueDictionary()


def _forget(base: SharedBase) -> None:
    for key in [key for key, held in _BASES.items() if held is base]:
        del _BASES[key]


def shared_base(policy: PolicyConfig) -> SharedBase:
    """Return the base of a configuration, loaded unless this process holds it already."""
    folder = Path(policy.model_name).expanduser()
    name = str(folder.resolve()) if folder.is_dir() else policy.model_name
    key = (name, policy.revision, policy.dtype, device_of(policy), policy.in_4bit)
    base = _BASES.get(key)
    if base is None:
        base = _BASES[key] = SharedBase(load_policy(policy))
    return base


def acting_policy(policy: PolicyConfig, weights: Path | None = None) -> Loaded:
    """Return the policy of a configuration to act with: the weights exported in a folder, or the base. Like
    `load_policy`, but adapters are put on the shared base."""
    if weights is not None and not (weights / ADAPTERS).exists():
        return load_policy(policy, weights)
    shared = shared_base(policy)
    return replace(shared.base, model=shared.adapted(weights), name=policy.model_name)
