"""Loading a bundle to be served: its router, its domain, and the small model behind an endpoint or in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from r2v.config import Config, PolicyConfig
from r2v.errors import UsageError
from r2v.llm.providers.teacher import POLICY_KEYS, asked_rate
from r2v.llm.waves import Waves
from r2v.log import logger
from r2v.serve.accounts.books import Books
from r2v.serve.bundle.domain import read_domain
from r2v.serve.bundle.manifest import read_bundle
from r2v.serve.bundle.play_bundle import bundle_gate, bundle_settings, local_pair
from r2v.serve.pair.pair import ServedPair
from r2v.serve.pair.small import APISmall, LocalSmall, Small
from r2v.serve.transport.endpoints import endpoint
from r2v.serve.transport.upstream import Upstream


@asynccontextmanager
async def served_pair(folder: Path, config: Config, upstream: Upstream, books: Books) -> AsyncIterator[ServedPair]:
    """Load a bundle while the block runs. A small model behind an API is the bundle's, unless the configuration names
    one (`policy.provider`). Raises as `load_pair` does."""

    def behind_api(policy: PolicyConfig) -> APISmall:
        target = endpoint(policy.as_endpoint(replace(config.teacher, engine=None)), POLICY_KEYS)
        return APISmall(target, asked_rate(target.teacher, keys=POLICY_KEYS), upstream, books)

    waves = Waves(workers=1)
    async with waves.open():
        yield load_pair(folder, config, waves, behind_api)


def load_pair(folder: Path, config: Config, waves: Waves, behind_api: Callable[[PolicyConfig], APISmall]) -> ServedPair:
    """Return the pair of a bundle. behind_api: constructor of a small model behind an API. Raises InputError for a
    damaged bundle or one of an earlier R2V, UsageError if the small model cannot be asked, EnvironmentFault if a
    package for its weights is not installed."""
    bundle = read_bundle(folder)
    domain, settings = read_domain(folder), bundle_settings(bundle)
    small: Small
    if settings.policy.is_api:
        if "samples" in settings.router.features:
            raise UsageError(f"{folder}: its router reads samples of the small model, which is behind an API")
        policy = config.policy if config.policy.is_api else settings.policy
        small = behind_api(policy.with_native_tools())
        gate = bundle_gate(bundle, settings, None, None, domain.untrusted)
    else:
        model, verifier = local_pair(bundle, settings, waves, config.rollout, domain.specs)
        small = LocalSmall(model)
        gate = bundle_gate(bundle, settings, model, verifier, domain.untrusted)
    logger.info(
        "  bundle loaded: bundle=%s tools=%d threshold=%g", folder, len(domain.tools), bundle.manifest.threshold
    )
    return ServedPair(bundle, domain, settings.inference, gate, small)
