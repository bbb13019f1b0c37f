"""Play a bundle on its own: no file of the project that made it is read.

    r2v export outputs/bundles/desk --config configs/mrp.yaml
    python -m examples.play_bundle outputs/bundles/desk --num-tasks 10
    python -m examples.play_bundle outputs/bundles/desk --config configs/mrp.yaml --condition noisy

The routed pair plays evaluation tasks of the benchmark that it was made for; --config sets the perturbations of that
world, not the models. --output keeps the episodes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from r2v.config import Config, TaskSelection, load
from r2v.data.store import write_episodes
from r2v.envs.base import load_benchmark
from r2v.rollout.model_factory import engine
from r2v.rollout.session import RolloutWorld, episode_specs, play_many
from r2v.serve.bundle.manifest import read_bundle
from r2v.serve.bundle.play_bundle import routed_actor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="folder that `r2v export` wrote")
    parser.add_argument("--config", help="configuration of the world (default: the defaults)")
    parser.add_argument("--condition", default="clean", choices=["clean", "noisy", "shift"], help="default: clean")
    parser.add_argument("--num-tasks", type=int, help="evaluation tasks (default: as the configuration says)")
    parser.add_argument("--output", type=Path, help="trajectories file to write (default: none)")
    values = parser.parse_args()
    config: Config = load(values.config)
    bundle, benchmark = read_bundle(values.bundle), load_benchmark(config.env.benchmark, config.env.options)
    waves = engine(config.rollout, benchmark)
    actor = routed_actor(bundle, benchmark, waves, rollout=config.rollout)
    selection, count = TaskSelection.evaluation(config, values.condition), values.num_tasks
    specs = episode_specs(
        benchmark,
        "evaluation",
        config.evaluation.seeds,
        selection,
        method="r2v",
        limit=count or config.evaluation.num_tasks,
    )
    world = RolloutWorld(benchmark, config.perturbations, config.inference)
    episodes = sorted(play_many(waves, world, specs, actor), key=lambda episode: episode.episode_id)
    steps, llm_steps = sum(len(e.steps) for e in episodes), sum(e.num_llm_fallbacks for e in episodes)
    print(
        f"{len(episodes)} episodes, success {fmean(e.success for e in episodes):.3f}, LLM steps {llm_steps / steps:.3f}"
    )
    if values.output:
        write_episodes(values.output, episodes)


if __name__ == "__main__":
    main()
