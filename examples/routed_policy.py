"""A routed policy: a small model proposes every step, and the LLM is asked when the small one contradicts itself.

    python -m examples.routed_policy      # 60 carts by the small model, by the LLM, and routed at a threshold

Nothing is estimated: every row is played in the environment of examples/own_benchmark.py from start to end.
"""

from __future__ import annotations

from statistics import fmean

from examples.own_benchmark import BINS, put, read_label
from examples.own_teacher import PRICE, Teacher, episodes_to_play, world
from r2v.config import Price
from r2v.console import text_table
from r2v.llm.scripted import ScriptedBackend
from r2v.llm.types import Reply, Request
from r2v.llm.waves import Waves
from r2v.randomness import uniform
from r2v.rollout.actors import PricedModel, Routed, StepView
from r2v.rollout.bill import StepBill
from r2v.rollout.session import play_many

CHEAP = Price(input=0.1, output=0.4, seconds_per_call=0.02, seconds_per_token=0.001)


def small_model(request: Request) -> str:
    """Put readable parcels, guess smudged labels, and be sure but wrong about a few readable ones."""
    label = read_label(request)
    if label is None:
        return put(1 + int(uniform("guess", *request.key) * BINS))
    misread = uniform("misread", *request.key[:3]) < 0.03  # the same for every sample of a step: confidently wrong
    return put(BINS + 1 if misread else label)


def main(count: int = 60) -> list[tuple[str, ...]]:
    waves = Waves(workers=1)
    small = PricedModel(waves.model(ScriptedBackend(small_model, name="small", price=CHEAP)), CHEAP, "slm", 64)
    teacher = PricedModel(waves.model(Teacher()), PRICE, "llm", 64)

    async def disagreement(view: StepView, proposal: Reply) -> tuple[float, StepBill]:
        """Return the router's score, the share of four samples that differ from the proposal, and their bill."""
        reply = await small.ask(view, num_samples=4, temperature=1.0)
        return sum(sample.text != proposal.text for sample in reply.samples) / 4, small.bill(view, reply)

    rows: list[tuple[str, ...]] = []
    for name, threshold in (("small model", 1.0), ("routed", 0.5), ("LLM", 0.0)):
        actor = Routed(small, teacher, disagreement, threshold, max_llm_calls=12)
        played = play_many(waves, world(), episodes_to_play(count), actor)
        steps, llm_steps = sum(len(e.steps) for e in played), sum(e.num_llm_fallbacks for e in played)
        success, cost = (fmean(values) for values in zip(*((e.success, e.total_cost) for e in played), strict=True))
        rows.append((name, f"{success:.2f}", f"{llm_steps / steps:.2f}", f"{cost:.6f}"))
    return rows


if __name__ == "__main__":
    print(text_table([("policy", "success", "LLM steps", "USD an episode"), *main()], right=(1, 2, 3)))
