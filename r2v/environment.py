"""Environment variables: those hidden from stages, and the proxy for a server.

    with stage_environment() as removed: ...    # hides variables of launchers and of accelerate from a stage
    proxy_of("https://api.openai.com/v1")       # the shell's proxy for that server, without its password

A launcher's RANK makes a library wait for ranks that do not exist, and accelerate's variables change a stage's
precision under an unchanged fingerprint; only R2V's configuration may affect results. Slurm's programs have a separate
list (`r2v.slurm.client.variables`).
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from ipaddress import ip_address
from urllib.parse import urlsplit

OF_LAUNCHERS = (
    *("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_*", "TORCHELASTIC_*", "NCCL_COMM_ID"),
    *("PMI_*", "PMI2_*", "PMIX_*", "OMPI_*", "MPI_*", "MPIEXEC_*", "MV2_*", "HYDRA_*", "PALS_*", "I_MPI_*"),
    *("HOROVOD_*", "CROSS_RANK", "CROSS_SIZE"),
)
"""Variables of torchrun and MPI launchers, which make libraries treat this process as one of several ranks."""
OF_ACCELERATE = (
    *("ACCELERATE_*", "FSDP_*", "PARALLELISM_CONFIG_*", "DEEPSPEED_*", "MEGATRON_LM_*"),
    *("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "USE_TORCH_XLA", "FORK_LAUNCHED"),
)
"""Variables of accelerate, which change how a trainer shards and rounds."""
_RULES = (("a launcher's", OF_LAUNCHERS), ("accelerate's", OF_ACCELERATE))
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def not_for_stages(values: Mapping[str, str]) -> dict[str, list[str]]:
    """Return owner -> sorted names of the variables hidden from stages; owners without any are omitted.

    >>> not_for_stages({"HOME": "/home/me", "RANK": "0", "ACCELERATE_MIXED_PRECISION": "bf16"})
    {"a launcher's": ['RANK'], "accelerate's": ['ACCELERATE_MIXED_PRECISION']}
    """
    by_owner = {owner: sorted(name for name in values if _matches(name, patterns)) for owner, patterns in _RULES}
    return {owner: names for owner, names in by_owner.items() if names}


def removal_text(removed: Mapping[str, Sequence[str]]) -> str:
    """Return the result of `not_for_stages` in words."""
    return "; ".join(f"{', '.join(names)} ({owner})" for owner, names in removed.items())


def without_launchers(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of launchers."""
    return {name: value for name, value in values.items() if not _matches(name, OF_LAUNCHERS)}


@contextmanager
def stage_environment() -> Iterator[dict[str, list[str]]]:
    """Remove the variables of `not_for_stages` within the block, and yield them; restore them at its end."""
    removed = not_for_stages(os.environ)
    before = {name: os.environ.pop(name) for names in removed.values() for name in names}
    try:
        yield removed
    finally:
        os.environ.update(before)


def spare_loopback() -> None:
    """Exclude loopback addresses from the shell's proxies, in this process and its children."""
    if not urllib.request.getproxies_environment().keys() - {"no"}:
        return
    for name in ("no_proxy", "NO_PROXY"):
        listed = [host.strip() for host in os.environ.get(name, "").split(",") if host.strip()]
        if "*" not in listed:
            os.environ[name] = ",".join([*listed, *(host for host in _LOOPBACK if host not in listed)])


def is_loopback(url: str) -> bool:
    """True if a URL's host is a loopback address."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def proxy_of(url: str) -> str:
    """Return the shell's proxy for a server, without user and password, and its variable, such as `squid:3128 of
    https_proxy`; "" without a proxy."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies_environment()
    if is_loopback(url) or urllib.request.proxy_bypass(parts.hostname or ""):
        return ""
    for scheme in (parts.scheme, "all"):
        if scheme in proxies:
            variable = next(name for name in os.environ if name.lower() == f"{scheme}_proxy")
            return f"{proxies[scheme].rpartition('@')[2].rpartition('//')[2].rstrip('/')} of {variable}"
    return ""


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
