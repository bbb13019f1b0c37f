"""Memory tracker: counts of the bytes of live tensors, real or fake; the planner's reference.

    with FakeTensorMode(), Tracker() as tracker:
        model = ...
        tracker.label("weights", model.parameters())
        with tracker.span("actor"):
            loss(model).backward()
    tracker.peaks["actor"]                  # bytes

Between `mark`s the live bytes after each operation are kept in `trace`, by the mark, and floating-point operations are
counted in `flops`. A dispatch mode sees every operation, records each new storage, and learns of its end by a weak
reference. No hooks on parameters are needed, so frozen weights, adapters, a base with three roles and layers called
many times are supported, unlike in torch's own MemTracker. Allocations inside one kernel (except logsumexp's, which
are known) and the allocator's gaps are not seen.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

OTHER = "activation"
"""Label of all other tensors: activations, temporaries, caches."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Stretch of a run: micro-batch, pass, and running part of the model."""

    batch: int
    """0: gradients are new; 1: gradients are accumulated."""
    action: str
    """forward, backward, step, read, prompt, choose or token."""
    unit: str = ""
    """layer, head (the output embedding), or "" for all other parts."""
    index: int = 0
    """Index of the layer, or of the call of the head."""


@dataclass
class _Storage:
    size: int
    kind: str = OTHER


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context that counts live tensor bytes; earlier tensors count from their first use in an operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        """Live bytes now."""
        self.peaks: dict[str, int] = {}
        """Finished span -> its peak in bytes."""
        self.trace: defaultdict[Mark, list[int]] = defaultdict(list)
        """Mark -> live bytes after each operation that follows it."""
        self.operations: defaultdict[Mark, list[int]] = defaultdict(list)
        """Mark -> hashes of these operations."""
        self.flops = 0
        """Floating-point operations since the first mark."""
        self.current: Mark | None = None
        """Last mark; None: `trace` is not written."""
        self._storages: dict[int, tuple[weakref.ref[Any], _Storage]] = {}
        self._parts: dict[str, int] = {}
        self._peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inside = args[0].nbytes if func is torch.ops.aten.logsumexp.default else 0
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._meet(value)
        if self.current is not None:
            self.trace[self.current].append(self.live + inside)
            self.operations[self.current].append(hash(func))
            self.flops += _operations(func, args, kwargs or {}, result)
        self._peak = max(self._peak, self.live + inside)
        return result

    def label(self, kind: str, tensors: Iterable[torch.Tensor]) -> None:
        """Count these tensors under the label `kind` from now on."""
        for tensor in tensors:
            record = self._meet(tensor)
            self._parts[record.kind] -= record.size
            record.kind = kind
            self._parts[kind] = self._parts.get(kind, 0) + record.size

    @property
    def parts(self) -> dict[str, int]:
        """Label -> live bytes now."""
        return {kind: size for kind, size in self._parts.items() if size}

    def mark(self, mark: Mark | None) -> None:
        """Begin a stretch of the trace; None ends it. A repeated mark continues its stretch."""
        self.current = mark

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record the block's peak in `peaks`, including tensors that are live at its beginning."""
        self._peak = self.live
        yield
        self.peaks[name] = self._peak

    def _meet(self, tensor: torch.Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if (entry := self._storages.get(key)) is not None:
            return entry[1]
        record = _Storage(size=storage.nbytes())
        self._storages[key] = (weakref.ref(storage, lambda _: self._gone(key)), record)
        self.live += record.size
        self._parts[record.kind] = self._parts.get(record.kind, 0) + record.size
        return record

    def _gone(self, key: int) -> None:
        _, record = self._storages.pop(key)
        self.live -= record.size
        self._parts[record.kind] -= record.size


def _operations(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Return the floating-point operations of a call as torch's FlopCounterMode counts them, attention on a CPU, which
    it does not support, like other attention."""
    packet = func._overloadpacket
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(*(tensor.shape for tensor in args[:3])))  # type: ignore[no-untyped-call]
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        return int(sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))  # type: ignore[no-untyped-call]
    count = flop_registry.get(packet)
    return int(count(*args, **kwargs, out_val=result)) if count is not None else 0
