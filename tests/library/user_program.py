"""A user's program that uses every public name; mypy --strict checks it against the wheel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import r2v
from r2v.envs.base import Capabilities


def dictated(goal: str) -> list[r2v.Message]:
    return [r2v.Message(role="user", content=goal)]


class Echo:
    """A user's own benchmark."""

    name, version, capabilities = "echo", r2v.__version__, Capabilities()

    def tasks(self) -> Sequence[r2v.Task]:
        return [r2v.Task(task_id="echo-0", goal="say it again")]

    def make(self) -> r2v.Environment:
        raise r2v.R2VError("no world yet")


async def ask(bundle: r2v.Bundle, config: r2v.Config) -> str:
    tools = [r2v.ToolSpec(name="say", parameters={"type": "object"})]
    messages = dictated("say it again")
    turn: r2v.Message = await r2v.Policy.load(bundle.policy.parent).act(messages, tools)
    score: float = await r2v.Verifier.load(bundle.folder).score(messages, turn, tools)
    decision = await r2v.Router.load(bundle.folder).decide(messages, tools, budget=0.3)
    if decision.source == "llm":
        turn = await r2v.Teacher(config).reply([*messages, {"role": "user", "content": "again"}], tools)
    async with r2v.Server(config, bundle=bundle.folder) as server:
        return f"{server.url} {turn.text} {score + decision.threshold:.2f}"


def main() -> None:
    benchmark: r2v.Benchmark = Echo()
    config: r2v.Config = r2v.load_config("configs/mrp.yaml", ["seed=1"])
    pipeline = r2v.Pipeline(config, root=".")
    made = [done.job for done in pipeline.run(until="router")]
    results: r2v.Results = pipeline.results()
    rows: int = len(results.to_frame("main_table"))
    print(len(benchmark.tasks()), made, rows, [episode.success for episode in results.episodes()])
    print(asyncio.run(ask(pipeline.export("outputs/bundles/echo"), config)))


def misused() -> None:
    r2v.load_config(1)  # type: ignore[arg-type]
    r2v.Pipeline("configs/mrp.yaml")  # type: ignore[arg-type]
    r2v.Results(".").to_frame(0)  # type: ignore[arg-type]
    r2v.Message(role="robot", content="")  # type: ignore[arg-type]
    r2v.Policy.load(".").act("go on")  # type: ignore[arg-type, unused-coroutine]


if __name__ == "__main__":
    main()
