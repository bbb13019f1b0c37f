"""The options of `r2v plan` that describe a training job, its strategy, and what was measured for it."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import get_args

from r2v.cli.options import whole
from r2v.constraints import Range
from r2v.memory.planner.state import Optimizer, Precision, Shards
from r2v.memory.planner.training_job import Placement, TrainingJob

TOKENS = Range(at_least=1, at_most=1_000_000_000)
"""Counts of tokens, episodes and rows."""
DEFAULT_CRITIC = "FacebookAI/roberta-base"
"""The backbone of ArCHer's critic (arXiv 2402.19446)."""


def add_strategy(plan: argparse.ArgumentParser) -> None:
    """Add the options that fix a part of the training strategy."""
    plan.add_argument(
        "--placement",
        choices=["auto", *get_args(Placement)],
        default="auto",
        help="shared: one base under all adapters; split: policy and guidance on separate GPUs; full: a model per role "
        "(default: auto, the first that fits)",
    )
    plan.add_argument(
        "--shards",
        choices=["auto", *get_args(Shards)],
        default="auto",
        help="how fully trained weights are sharded over GPUs (default: auto, the first that fits)",
    )
    plan.add_argument(
        "--checkpointing",
        choices=["auto", "on", "off"],
        default="auto",
        help="gradient checkpointing (default: auto, on where nothing else fits)",
    )


def add_measured(plan: argparse.ArgumentParser) -> None:
    """Add the options of what was measured on a GPU."""
    measured = plan.add_mutually_exclusive_group()
    measured.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="use the factors that --probe measured on this GPU (--gpu-type; default: constants of the planner)",
    )
    measured.add_argument(
        "--probe",
        type=Path,
        metavar="FILE",
        help="measure each phase on the GPU here, with random weights, and save the factors for --calibration "
        "(default: plan only)",
    )


def add_job(plan: argparse.ArgumentParser) -> None:
    """Add the options that describe a training job."""
    plan.add_argument(
        "--model",
        metavar="NAME",
        help="tiny, a directory with a config.json, or a hub name (default: policy.model_name)",
    )
    plan.add_argument(
        "--critic", metavar="NAME", help=f"the critic's backbone (default: {DEFAULT_CRITIC}, or the configuration's)"
    )
    plan.add_argument(
        "--baseline",
        choices=["auto", "loo", "value"],
        default="auto",
        help="baseline of the guidance's advantages: leave-one-out or a value function (default: auto, the value "
        "function where all weights are trained)",
    )
    plan.add_argument(
        "--lora-r",
        type=whole(Range(at_least=0, at_most=65_536)),
        metavar="RANK",
        help="rank of the adapters; 0: all weights are trained (default: 16, or the configuration's)",
    )
    plan.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="mixed: computed in bfloat16, trained in float32 (default: mixed, or the configuration's)",
    )
    plan.add_argument("--four-bit", action="store_true", default=None, help="load the frozen base in nf4")
    plan.add_argument("--optimizer", choices=get_args(Optimizer), help="default: adamw, or the configuration's")
    defaults = {field.name: field.default for field in fields(TrainingJob)}
    for option, meaning in (
        ("prompt-tokens", "tokens of a prompt"),
        ("completion-tokens", "tokens of a completion"),
        ("critic-tokens", "tokens of a text that the critic reads"),
        ("episodes", "episodes of an iteration, all GPUs together"),
        ("hints", "guidance completions for each first turn"),
        ("batch", "sequences (or pairs) of an update, all GPUs together"),
    ):
        usual = defaults[option.replace("-", "_")]
        plan.add_argument(
            f"--{option}", type=whole(TOKENS), metavar="N", help=f"{meaning} (default: {usual}, or the configuration's)"
        )
