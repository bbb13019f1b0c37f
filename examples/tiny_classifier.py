"""A tiny classifier to sweep over: an example of `command:` of an experiment, in numpy alone.

    python examples/tiny_classifier.py --config configs/mlp/mlp_mnist.yaml

It does not import R2V. An experiment requires a program to read its configuration from a file, and to write
metrics.json (optionally metrics.jsonl and outcomes.csv) to the folder named by R2V_RUN_DIR.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

CLASSES, PIXELS = 10, 64


def digits(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return noisy copies of ten patterns: pictures, labels."""
    patterns = np.random.default_rng(0).normal(size=(CLASSES, PIXELS))
    labels = rng.integers(CLASSES, size=count)
    return patterns[labels] + 1.6 * rng.normal(size=(count, PIXELS)), labels


def rate(config: dict[str, Any], epoch: int) -> float:
    """Return the learning rate of an epoch."""
    share = epoch / config["epochs"]
    return float(config["lr"] * (0.5 * (1 + np.cos(np.pi * share)) if config["scheduler"] == "cosine" else 1.0))


def softmax(hidden: NDArray[np.float64], prototypes: NDArray[np.float64], similarity: str) -> NDArray[np.float64]:
    """Return class probabilities of each hidden state, by its similarity to the class's prototype."""
    if similarity == "cosine":
        scores = hidden @ prototypes.T
    else:
        scores = -0.5 * ((hidden[:, None, :] - prototypes[None]) ** 2).sum(axis=2)
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = likely / likely.sum(axis=1, keepdims=True)
    return probabilities


def train(config: dict[str, Any], report: Callable[[int, float], None]) -> NDArray[np.bool_]:
    """Train class prototypes above random layers; return (pictures,), True for each unseen one that is right."""
    rng = np.random.default_rng(config["seed"])
    pictures, labels = digits(rng, 400)
    test, answers = digits(np.random.default_rng(10_000 + config["seed"]), 200)
    decay = [0.0, *config.get("lambda_ace", [0.0] * (config["layers"] - 1))]
    if len(decay) != config["layers"]:
        raise SystemExit(f"lambda_ace has {len(decay) - 1} values, must have layers - 1 = {config['layers'] - 1}")
    for depth in range(config["layers"] - 1):
        weights = rng.normal(size=(pictures.shape[1], config["width"])) / np.sqrt(pictures.shape[1])
        pictures, test = (np.tanh(values @ weights * (1 - decay[depth + 1])) for values in (pictures, test))
    prototypes, right = 0.1 * rng.normal(size=(CLASSES, pictures.shape[1])), np.zeros(len(test), bool)
    for epoch in range(config["epochs"]):
        for _ in range(10):
            wrong = softmax(pictures, prototypes, config["similarity"]) - np.eye(CLASSES)[labels]
            prototypes -= 10 * rate(config, epoch) * wrong.T @ pictures / len(pictures)
        right = softmax(test, prototypes, config["similarity"]).argmax(axis=1) == answers
        report(epoch + 1, float(right.mean()))
    return right


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    for flag in ("--show", "--research_only", "--no_confusion", "--advanced"):
        parser.add_argument(flag, action="store_true")
    arguments = parser.parse_args()
    config = yaml.safe_load(Path(arguments.config).read_text())
    folder = Path(os.environ.get("R2V_RUN_DIR", "."))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("w") as series:
        right = train(config, lambda epoch, value: print(json.dumps({"epoch": epoch, "accuracy": value}), file=series))
    with (folder / "outcomes.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("unit", "value"), *((f"picture-{i}", int(ok)) for i, ok in enumerate(right))])
    (folder / "metrics.json").write_text(json.dumps({"accuracy": float(right.mean()), "epochs": config["epochs"]}))
    print(f"accuracy {right.mean():.3f}", *(name for name, given in vars(arguments).items() if given is True))


if __name__ == "__main__":
    main()
