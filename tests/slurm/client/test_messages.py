"""Slurm's messages: temporary refusals, and reasons for which a job never starts."""

from __future__ import annotations

import pytest

from r2v.slurm.client.messages import PASSING_REFUSALS, cannot_start, refusal_passes

FOR_EVER = """
PartitionTimeLimit PartitionNodeLimit PartitionConfig MaxMemPerLimit BadConstraints InvalidAccount InvalidQOS
AccountNotAllowed QOSNotAllowed ReservationDeleted DeadLine JobHoldMaxRequeue launch_failed_requeued_held
QOSMaxCpuPerJobLimit QOSMaxMemoryPerJob QOSMaxGRESPerJob QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit
QOSMaxCpuMinutesPerJobLimit QOSMaxBillingPerJob QOSMaxCpuPerNode QOSMaxMemoryPerNode QOSMaxGRESPerNode
QOSMinCpuNotSatisfied QOSMinGRES_NotSatisfied AssocMaxCpuPerJobLimit AssocMaxMemPerJob AssocMaxGRESPerJob
AssocMaxNodePerJobLimit AssocMaxWallDurationPerJobLimit AssocMaxCPUMinutesPerJobLimit AssocMaxBillingPerJob
"""
"""Reasons in slurm.h that name a flaw of the request or a limit on one job."""
PASSES = """
None Priority Resources Dependency DependencyNeverSatisfied BeginTime Licenses Reservation ReqNodeNotAvail PartitionDown
PartitionInactive NodeDown Prolog Cleaning JobArrayTaskLimit SchedDefer FrontEndDown QOSJobLimit QOSResourceLimit
QOSTimeLimit AssociationJobLimit AssociationResourceLimit AssociationTimeLimit QOSUsageThreshold QOSGrpCpuLimit
QOSGrpMemLimit QOSGrpGRES QOSGrpNodeLimit QOSGrpJobsLimit QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuPerUserLimit
QOSMaxJobsPerUserLimit QOSMaxGRESPerUser QOSMaxMemoryPerUser QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit
QOSMaxJobsPerAccountLimit AssocGrpCpuLimit AssocGrpMemLimit AssocGrpJobsLimit AssocMaxJobsLimit AssocMaxSubmitJobLimit
AccountingPolicy BurstBufferResources BurstBufferStageIn FedJobLock NHC PowerNotAvail PowerReserved
"""
"""Reasons that pass by themselves: other jobs, nodes, licences, limits on all jobs of a user together."""
FINAL_REFUSALS = (
    "Requested time limit is invalid (missing or exceeds some limit)",
    "Time limit specification required, but not provided",
    "Memory specification can not be satisfied",
    "Memory required by task is not available",
    "Requested node configuration is not available",
    "Node count specification invalid",
    "CPU count specification invalid",
    "CPU count per node can not be satisfied",
    "More processors requested than permitted",
    "Job size specification needs to be at least",
    "Invalid generic resource (gres) specification",
    "Invalid partition name specified",
    "Invalid account or account/partition combination specified",
    "Invalid qos specification",
    "Invalid node name specified",
    "Invalid feature specification",
    "Invalid job array specification",
    "Requested reservation is invalid",
    "Access to requested reservation denied",
    "User's group not permitted to use this partition",
    "Access/permission denied",
    "Invalid user id",
    "Job dependency problem",
)


@pytest.mark.parametrize("reason", FOR_EVER.split())
def test_a_job_that_breaks_a_limit_on_one_job_never_starts(reason: str) -> None:
    assert cannot_start(reason) and cannot_start(f"({reason})")


@pytest.mark.parametrize("reason", PASSES.split())
def test_a_job_that_waits_for_others_starts_some_day(reason: str) -> None:
    assert not cannot_start(reason)


@pytest.mark.parametrize("text", [*PASSING_REFUSALS, *FINAL_REFUSALS])
def test_a_refusal_is_read_by_its_text(text: str) -> None:
    assert refusal_passes(f"sbatch: Batch job submission failed: {text}") == (text in PASSING_REFUSALS)


@pytest.mark.parametrize(
    "text", ["Requested time limit is invalid (missing or exceeds some limit)", "the policy of this site says no"]
)
def test_words_like_limit_and_policy_alone_say_nothing(text: str) -> None:
    assert not refusal_passes(text)
