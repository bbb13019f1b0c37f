"""CPU-microseconds of a routing decision, whole and by part, beside Switchyard's stage router on the same states.

    make mrp && python -m benchmarks.switchyard_peer      # the policy and the router; the peer, in its own environment
    python -m benchmarks.decision                         # then this
    python -m benchmarks.decision --checkout ../before    # and the gate of another checkout of R2V, in the same run

The small policy plays noisy desk tasks; its states and proposals go to a file that every side reads. A side is a
process of its own, pinned to one core; each part is timed in a child process, which decides on other episodes first and
then once on every state in the order of a wave, so that no cache holds anything of a measured episode. Printed: medians
over rounds, in which the sides take turns. Long states are the same states with further rows on every page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.switchyard_peer import CHILD, HOME, INSTALL, RELEASE, SEMANTICS, SWITCHYARD, conversation
from r2v.config import Config, InferenceConfig, TaskSelection
from r2v.envs.desk import Desk
from r2v.llm.answer_cache import digest_of
from r2v.llm.types import Reply, Sample, Usage
from r2v.rollout.actors import Act, GreedyActor, StepView
from r2v.rollout.gates import FeatureExtractor, ScoreGate
from r2v.router import features
from r2v.router.baselines import Instruments, score_function
from r2v.router.case_support import CaseIndex, recorded_steps
from r2v.router.escalation import escalates, recorded_score
from r2v.router.features import Signals
from r2v.router.models import load
from r2v.wire.message import Message, ToolSpec

WARMING, MEASURED = 40, 60
"""Episodes: of the warm-up, and of the measurement."""
RECORDED = 500
"""The teacher's episodes in the index of case support."""
LONG_PAGE = 3_500
"""Characters that a page of a long state has at least."""
THRESHOLD = 0.15
KINDS = ("short", "long")
PARTS = ("gate", "digest", "uncertainty", "progress", "page", "tool", "score", "gate with case support")
State = tuple[StepView, Reply]

PEER_LOOP = """
import time
asked = [json.loads(line) for line in open(sys.argv[1])]

async def decide(states):
    for messages in states:
        await decided(messages, 0.5, 3, json.loads(sys.argv[2]))

figures = {}
for name in asked[0]:
    asyncio.run(decide(asked[0][name]))
    began = time.process_time()
    asyncio.run(decide(asked[1][name]))
    figures[name] = {"gate": 1e6 * (time.process_time() - began) / len(asked[1][name])}
print(json.dumps(figures), flush=True)
"""


class Recording:
    """A greedy actor that records its states and its model's replies."""

    def __init__(self, actor: GreedyActor) -> None:
        self.actor, self.kept = actor, list[State]()

    async def act(self, view: StepView) -> Act:
        """Return the actor's action."""
        act = await self.actor.act(view)
        assert act.proposal is not None
        self.kept.append((view, act.proposal))
        return act


def played(policy: Path, config: Config, folder: Path) -> list[dict[str, Any]]:
    """Return the states of the small policy's episodes; write the teacher's recorded steps to `folder` as an index."""
    from r2v.llm.local.backend import LocalBackend
    from r2v.llm.scripted import ScriptedBackend
    from r2v.llm.waves import Waves
    from r2v.policy.load import load_policy
    from r2v.policy.prompt_encoder import Encoder
    from r2v.rollout.actors import PricedModel
    from r2v.rollout.session import RolloutWorld, episode_specs, play_many

    loaded, desk, price = load_policy(config.policy, policy.resolve()), Desk(), config.cost.slm_price
    encode = Encoder.of(loaded.tokenizer, config.policy, config.inference.max_new_tokens)
    waves = Waves(workers=1)
    local = LocalBackend(loaded.model, loaded.tokenizer, encode, name="slm", price=price, max_batch=64)
    small = Recording(
        GreedyActor(PricedModel(waves.model(local), price, "slm", config.inference.max_new_tokens), "slm")
    )
    scripted = waves.model(ScriptedBackend(desk.expert, name="teacher", price=price))
    teacher = GreedyActor(PricedModel(scripted, price, "llm", config.inference.max_new_tokens), "teacher")
    world = RolloutWorld(desk, config.perturbations, config.inference)
    noisy = TaskSelection.evaluation(config, "noisy")
    play_many(waves, world, episode_specs(desk, "calibration", [1], noisy, method="", limit=WARMING + MEASURED), small)
    recorded = episode_specs(desk, "train", [1], noisy, method="", limit=RECORDED)
    steps = recorded_steps(play_many(waves, world, recorded, teacher))
    folder.mkdir()
    CaseIndex.of(steps, desk.make().tool_specs(), seed=0).save(folder)
    return [plain(view, reply) for view, reply in small.kept]


def plain(view: StepView, reply: Reply) -> dict[str, Any]:
    """Return a state as JSON."""
    sample = reply.samples[0]
    return {
        "task_id": view.task_id,
        "seed": view.seed,
        "max_steps": view.max_steps,
        "goal": view.goal,
        "observations": view.observations,
        "actions": view.actions,
        "tools": [[tool.name, tool.description, tool.parameters] for tool in view.tools],
        "text": sample.text,
        "tokens": sample.tokens,
        "logprobs": sample.logprobs,
        "entropies": sample.entropies,
        "tokens_in": reply.usage.tokens_in,
    }


def lengthened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with long pages: further rows of other people, distinct by task and step."""

    def page(step: int, text: str) -> str:
        row = '{{"row":"{0}-{1}-{2}","name":"person{2}","team":"field","status":"open","id":"x{1}{2}"}}'
        rows = (row.format(record["task_id"], step, number) for number in range(LONG_PAGE // 60))
        return "\n".join([text, *rows])[: max(len(text), LONG_PAGE)]

    return {**record, "observations": [page(step, text) for step, text in enumerate(record["observations"])]}


def states_of(records: Iterable[Mapping[str, Any]]) -> list[State]:
    """Return the states as a gate receives them. Equal texts are one object, as in a running episode."""
    texts: dict[str, str] = {}
    tools: dict[str, tuple[ToolSpec, ...]] = {}

    def same(values: Iterable[str]) -> tuple[str, ...]:
        return tuple(texts.setdefault(value, value) for value in values)

    def state(record: Mapping[str, Any]) -> State:
        observations, actions = same(record["observations"]), same(record["actions"])
        turns = [("user", record["goal"]), ("tool", observations[0])]
        for action, page in zip(actions, observations[1:], strict=True):
            turns += [("assistant", action), ("tool", page)]
        specs = tuple(ToolSpec(name=n, description=d, parameters=p) for n, d, p in record["tools"])
        view = StepView(
            task_id=record["task_id"],
            seed=record["seed"],
            step=len(actions),
            max_steps=record["max_steps"],
            goal=record["goal"],
            observations=observations,
            actions=actions,
            messages=tuple(Message(role=role, content=text) for role, text in turns),  # type: ignore[arg-type]
            tools=tools.setdefault(json.dumps(record["tools"]), specs),
        )
        signals: dict[str, Any] = {name: tuple(record[name]) for name in ("tokens", "logprobs", "entropies")}
        sample = Sample(text=record["text"], **signals)
        return view, Reply(samples=(sample,), usage=Usage(tokens_in=record["tokens_in"]), model="slm")

    return [state(record) for record in records]


def forked(work: Callable[[], float]) -> float:
    """Return the result of the work in a child process, which makes its states itself: the first touch of an inherited
    page of memory would count."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, repr(work()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        return float(pipe.read())


def measure(folder: Path, router: Path) -> dict[str, dict[str, float]]:
    """Return the figures of this checkout, by kind of states and part."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model, index, untrusted = load(router), CaseIndex.load(folder / "cases"), Desk.capabilities.untrusted
    inference, instruments = InferenceConfig(), Instruments()

    def decide(states: Sequence[State], cases: CaseIndex | None = None) -> None:
        extractor = FeatureExtractor(inference, untrusted=untrusted, cases=cases)
        gate = ScoreGate(score_function("r2v", {"r2v": model}), extractor, instruments)

        async def every() -> None:
            for view, proposal in states:
                score, _ = await gate(view, proposal)
                escalates(recorded_score(score), THRESHOLD)

        asyncio.run(every())

    def signals(view: StepView, proposal: Reply) -> Signals:
        return Signals(
            goal=view.goal,
            observations=view.observations,
            actions=view.actions,
            tools=view.tools,
            proposal=proposal,
            max_steps=view.max_steps,
            max_llm_calls=inference.max_llm_calls,
            untrusted=untrusted,
        )

    def timed(kind: str, part: str) -> float:
        warming, measured = (states_of(json.loads(line)[kind]) for line in (folder / "states.jsonl").open())
        decide(warming, index if "case" in part else None)
        vectors = [features.extract(signals(*state)) for state in warming]
        work: Callable[[], object]
        if part in ("gate", "gate with case support"):
            work = partial(decide, measured, index if "case" in part else None)
        elif part == "digest":
            work = partial(list, (digest_of(view.messages, 0, (), (), False, False) for view, _ in measured))
        elif part == "score":
            work = partial(list, (model.predict(vector) for vector in (vectors * 2)[: len(measured)]))
        else:
            ready = [signals(*state) for state in measured]
            work = partial(list, map(features._GROUPS[part], ready))
        began = time.process_time()
        work()
        return 1e6 * (time.process_time() - began) / len(measured)

    return {kind: {part: forked(partial(timed, kind, part)) for part in PARTS} for kind in KINDS}


def side(command: Sequence[str], checkout: Path) -> dict[str, dict[str, float]]:
    """Run a side's process and return the figures of its last line."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if not done.stdout:  # an abort at the end, after the figures, loses nothing
        raise SystemExit(f"{command[0]} of {checkout} printed no figures (exit code {done.returncode}): {done.stderr}")
    figures: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Play, measure in turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=Path("outputs/mrp/policy/preference/final"))
    parser.add_argument("--router", type=Path, default=Path("outputs/mrp/router/r2v.json"))
    parser.add_argument("--checkout", type=Path, action="append", default=[], help="another checkout of R2V")
    parser.add_argument("--peers", type=Path, default=HOME, help="Switchyard's environment (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.router)))
        return
    if not (arguments.policy.exists() and arguments.router.exists()):
        parser.error(f"{arguments.policy}, {arguments.router}: not there; run `make mrp` first, or name others")
    with tempfile.TemporaryDirectory(prefix="r2v-decision-") as name:
        folder = Path(name)
        records = played(arguments.policy, Config(), folder / "cases")
        tasks = list(dict.fromkeys(record["task_id"] for record in records))
        records.sort(key=lambda record: len(record["actions"]))
        halves = [[r for r in records if (r["task_id"] in tasks[:WARMING]) is warming] for warming in (True, False)]
        sets = [{"short": half, "long": list(map(lengthened, half))} for half in halves]
        (folder / "states.jsonl").write_text("".join(json.dumps(half) + "\n" for half in sets))
        talks = [
            {kind: [conversation(view) for view, _ in states_of(of)] for kind, of in half.items()} for half in sets
        ]
        (folder / "talks.jsonl").write_text("".join(json.dumps(half) + "\n" for half in talks))
        for kind, of in sets[1].items():
            size = fmean(sum(map(len, [*record["observations"], *record["actions"]])) for record in of)
            print(
                f"{kind}: {len(of)} states of {len(tasks) - WARMING} episodes, {size:,.0f} characters each on average"
            )
        here = Path(__file__).resolve().parents[1]
        measuring = [str(Path(__file__).resolve()), "--measure", name, "--router", str(arguments.router.resolve())]
        sides = {str(path): ([sys.executable, *measuring], path) for path in [here, *arguments.checkout]}
        python = arguments.peers / "bin" / "python"
        if python.exists():
            code = CHILD.partition("\nfor line in sys.stdin")[0] + PEER_LOOP
            peer = [str(python), "-c", code, str(folder / "talks.jsonl"), json.dumps(SEMANTICS["desk"])]
            sides[f"{SWITCHYARD} {RELEASE.partition('==')[2]}"] = (peer, here)
        else:
            print(f"{SWITCHYARD}: left out, there is no interpreter at {python}; run `{INSTALL}`")
        rounds = [{name: side(*how) for name, how in sides.items()} for _ in range(arguments.rounds)]
    for name in sides:
        for kind in KINDS:
            figures = {
                part: median(round_figures[name][kind][part] for round_figures in rounds)
                for part in rounds[0][name][kind]
            }
            print(f"{name}, {kind}: " + ", ".join(f"{part} {figure:.1f}" for part, figure in figures.items()))


if __name__ == "__main__":
    main()
