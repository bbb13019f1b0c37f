"""The tracker counts tensors' bytes, whichever code makes them and however they are shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from r2v.memory.measured.tracker import Tracker


@pytest.fixture(params=["without data", "with data"])
def tracker(request: pytest.FixtureRequest) -> Any:
    if request.param == "with data":
        with Tracker() as found:
            yield found
    else:
        with FakeTensorMode(), Tracker() as found:
            yield found


def test_bytes_come_and_go_and_views_are_free(tracker: Tracker) -> None:
    x = torch.zeros(100)
    y = x + 1
    z = y.view(10, 10)
    assert tracker.live == 800
    del y
    assert tracker.live == 800, "the view still holds it"
    del z
    assert tracker.live == 400


def test_the_peak_of_a_span_is_not_its_end(tracker: Tracker) -> None:
    x = torch.zeros(100)
    with tracker.span("sum"):
        (x * 2).sum()
    assert tracker.peaks["sum"] == 400 + 400 + 4
    assert tracker.live == 400


def test_an_AdamW_step_is_20_bytes_a_parameter(tracker: Tracker) -> None:
    weight = nn.Parameter(torch.zeros(1000))
    tracker.label("weights", [weight])
    optimizer = torch.optim.AdamW([weight], foreach=True)
    for name in ("first", "second"):
        with tracker.span(name):
            (weight * 1.0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert tracker.peaks["second"] == pytest.approx(20_000, abs=50)
    assert tracker.parts["weights"] == 4000


def test_the_first_AdamW_step_peaks_as_the_later_ones(tracker: Tracker) -> None:
    """Its moments are made in it, and stay: no plan has this transition."""
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.AdamW([weight], foreach=True)
    for name in ("first", "second"):
        with tracker.span(name):
            (weight * 1.0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert tracker.peaks["first"] == pytest.approx(tracker.peaks["second"], abs=50)


def test_what_logsumexp_takes_inside_its_kernel(tracker: Tracker) -> None:
    x = torch.zeros(10, 100)
    with tracker.span("sum"):
        x.logsumexp(-1)
    assert tracker.peaks["sum"] == 2 * 4000 + 40


def test_frozen_weights_and_a_layer_called_twice(tracker: Tracker) -> None:
    """Cases that torch's MemTracker refuses: a parameter without gradient, and a module that runs twice an
    iteration."""
    frozen, adapter = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    frozen.requires_grad_(False)
    with tracker.span("pass"):
        x = torch.zeros(4, 8)
        for _ in range(2):
            x = frozen(x) + adapter(x)
        x.sum().backward()
    assert tracker.peaks["pass"] > 2 * 256 + 4 * 128
    assert adapter.weight.grad is not None and frozen.weight.grad is None
