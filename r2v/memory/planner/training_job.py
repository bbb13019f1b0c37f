"""Input of the memory planner: training job, machine and training strategies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from r2v.errors import UsageError
from r2v.memory.models import KnownModel
from r2v.memory.planner.state import IN_8_BITS, Optimizer, Precision, Shards
from r2v.memory.sizes import GIB

CUBLAS_WORKSPACES = 64 * 2**20
"""Bytes that cuBLAS allocates by torch on its first products: 32 MiB each for the threads of forward passes and of
autograd on a Hopper GPU (measured), 8 MiB each on others."""
StageName = Literal["hierarchical", "bc", "preference", "verifier"]
Placement = Literal["shared", "split", "full"]
OPTIMIZERS: Mapping[bool, tuple[Optimizer, ...]] = {True: ("adamw", "adamw_fused"), False: ("adamw", *IN_8_BITS)}
"""Optimizers of hierarchical training (True) and of the other stages (False)."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Training stage: all settings that decide its memory, which no plan changes."""

    stage: StageName
    code: str
    """Dotted path of the stage's function that runs a micro-batch, from its row in JOBS."""
    model: KnownModel
    critic: KnownModel | None = None
    """Backbone of the critic (hierarchical)."""
    value: bool = False
    """True if guidance has a value function of the critic's shape as its baseline; leave-one-out needs none."""
    lora_rank: int = 16
    """Rank of each adapter; 0: all weights are trained."""
    precision: Precision = "mixed"
    """float32, bfloat16, or mixed: computed in bfloat16, trained in float32."""
    four_bit: bool = False
    """True if the frozen base is loaded in nf4."""
    optimizer: Optimizer = "adamw"
    """adamw: torch's foreach AdamW; adamw_fused (hierarchical training): torch's fused one; adamw_8bit and
    paged_adamw_8bit (other stages): bitsandbytes'."""
    prompt_tokens: int = 512
    """Longest prompt."""
    completion_tokens: int = 512
    """Longest completion."""
    critic_tokens: int = 512
    """Tokens of each text read by the critic: a state and an utterance per turn."""
    episodes: int = 64
    """Episodes of one iteration, all GPUs together."""
    hints: int = 2
    """Guidance completions for one first turn."""
    batch: int = 256
    """Sequences (or pairs) of one update, all GPUs together."""
    replay: int = 20_000
    """Turns in the critic's replay buffer."""
    engine_memory: float = 0.0
    """Share of each GPU's memory used by a serving engine during training (hierarchical)."""

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "completion_tokens", "critic_tokens", "episodes", "hints", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lora_rank < 0:
            raise UsageError(f"lora_rank must be at least 0, got {self.lora_rank}")
        if self.four_bit and self.lora_rank == 0:
            raise UsageError("4-bit weights cannot be trained themselves: give adapters a rank, or leave 4 bits out")
        if self.optimizer not in OPTIMIZERS[self.stage == "hierarchical"]:
            raise UsageError(
                f"--optimizer {self.optimizer}: {self.stage} is not trained by it; allowed: "
                f"{', '.join(OPTIMIZERS[self.stage == 'hierarchical'])}"
            )
        if self.model.encoder:
            raise UsageError(
                f"{self.model.name} is an encoder and writes nothing; name a decoder such as "
                "meta-llama/Llama-3.2-3B, an encoder can be the critic"
            )

    @property
    def base_width(self) -> int:
        """Bytes per weight of the language model, except packed ones: with a 4-bit base the others are float32
        (peft.prepare_model_for_kbit_training)."""
        if self.four_bit:
            return 4
        if self.precision == "mixed":
            return 2 if self.lora_rank else 4
        return 4 if self.precision == "float32" else 2

    @property
    def computed_width(self) -> int:
        """Bytes per gathered weight of a fully trained sharded model: bfloat16 under autocast, which hierarchical
        training lacks."""
        return 2 if self.precision == "mixed" and self.stage != "hierarchical" else self.base_width

    @property
    def trained_width(self) -> int:
        """Bytes per trained weight."""
        return 2 if self.precision == "bfloat16" else 4

    @property
    def tokens(self) -> int:
        """Tokens of a whole sequence."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, kw_only=True)
class Machine:
    """GPUs of one node and their memory that is not for tensors; that of NCCL and fragmentation is assumed."""

    memory: float
    """Bytes of one GPU."""
    gpus: int = 1
    kind: str = ""
    """Type in --gres=gpu:<kind>:<count>; "" for any."""
    context: float = 0.6 * GIB
    """Bytes of a process for CUDA's context, kernels and cuBLAS workspaces. Measured on an H200, torch 2.11: .51 GiB,
    and `CUBLAS_WORKSPACES`."""
    nccl: float = 0.3 * GIB
    """Bytes of the collectives' buffers with several GPUs."""
    prefixes: float = 0.0
    """Bytes of the prefix caches of acting stages."""
    fragmentation: float = 0.05
    """Share of the activation bytes lost to the allocator's gaps."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Phase -> measured / predicted activation bytes of a probe (`r2v.memory.on_device.calibration`)."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise UsageError(f"--gpus {self.gpus}: at least one GPU is needed")
        if self.usable <= 0:
            raise UsageError(
                f"--gpu: {self.memory / GIB:.2f} GiB leave nothing beside the {self.reserved / GIB:.2f} "
                "GiB that CUDA takes; name a larger GPU"
            )

    @property
    def reserved(self) -> float:
        """Bytes of each GPU that are not for tensors."""
        return self.context + self.prefixes + (self.nccl if self.gpus > 1 else 0)

    @property
    def usable(self) -> float:
        """Bytes of each GPU for tensors."""
        return self.memory - self.reserved


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Training strategy: device of each role, sharding, checkpointing and offloading."""

    placement: Placement
    shards: Shards = "none"
    checkpoint: bool = False
    """True with gradient checkpointing: layers run again in backward instead of saving activations."""
    offload: bool = False
    """True if reference and target critic are in CPU memory."""

    def __str__(self) -> str:
        parts = [
            self.placement,
            *([] if self.shards == "none" else [self.shards]),
            *(["checkpointing"] if self.checkpoint else []),
            *(["reference and target on the CPU"] if self.offload and self.placement == "full" else []),
        ]
        return ", ".join(parts)


def strategies(
    job: TrainingJob,
    gpus: int,
    *,
    placement: Placement | None = None,
    shards: Shards | None = None,
    checkpoint: bool | None = None,
    offload: bool | None = None,
) -> Iterator[Strategy]:
    """Yield the strategies to try, the fastest first, restricted by arguments that are not None. Raise UsageError for
    an argument that is impossible for this job."""
    if placement == "shared" and job.lora_rank == 0:
        raise UsageError(
            "placement shared: one base cannot serve three roles when its own weights are trained; "
            "train adapters (policy.lora_r=16), or name full or split"
        )
    if placement == "split" and gpus % 2:
        raise UsageError(f"placement split: needs GPUs in pairs, policy on one and guidance on the other; got {gpus}")
    if placement not in (None, "full") and job.stage != "hierarchical":
        raise UsageError(f"placement {placement}: {job.stage} has one model; leave hierarchical.placement out")
    if shards not in (None, "none") and (job.lora_rank or gpus == 1 or job.optimizer in IN_8_BITS):
        raise UsageError(
            f"shards {shards}: only fully trained weights on several GPUs are sharded, and no 8-bit optimizer; got "
            f"lora_rank {job.lora_rank} on {gpus} GPU{'s' if gpus > 1 else ''}, {job.optimizer}"
        )
    for possible, offloads in _placements(job, gpus):
        can_shard = job.lora_rank == 0 and gpus > 1 and possible == "full" and job.optimizer not in IN_8_BITS
        for sharding in get_args(Shards) if can_shard else ("none",):
            for checkpoints in (False, True):
                if (
                    placement in (None, possible)
                    and shards in (None, sharding)
                    and checkpoint in (None, checkpoints)
                    and offload in (None, offloads)
                    and not (offloads and sharding != "none")
                ):
                    yield Strategy(placement=possible, shards=sharding, checkpoint=checkpoints, offload=offloads)


def _placements(job: TrainingJob, gpus: int) -> Iterator[tuple[Placement, bool]]:
    """Yield (placement, offload), the fastest first."""
    if job.stage != "hierarchical":
        yield "full", False
        return
    if job.lora_rank:
        yield "shared", False
    yield "full", False
    if gpus % 2 == 0:
        yield "split", True
    yield "full", True
