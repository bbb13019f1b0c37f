#!/usr/bin/env bash
# Install the Debian packages of tests/slurm/packages.txt; without the right to install packages print one line.
# No daemon is started and none comes up with the machine: the tests start their own, privately.
set -euo pipefail
cd "$(dirname "$0")"
PATH=$PATH:/usr/sbin:/sbin

lacking=""
for program in slurmctld slurmd slurmdbd sbatch sacct munged mariadbd; do
    command -v "$program" >/dev/null || lacking="$lacking $program"
done
[ -n "$lacking" ] || exit 0

root=""
[ "$(id -u)" = 0 ] || root="sudo -n"
if ! command -v apt-get >/dev/null || ! ${root:-true} true 2>/dev/null; then
    echo "no$lacking, and no right to install packages: as root, apt-get install $(paste -sd' ' packages.txt)" >&2
    exit 0
fi

policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then  # Debian asks it before it starts a freshly installed service
    printf '#!/bin/sh\nexit 101\n' | $root tee $policy >/dev/null
    $root chmod 755 $policy
    trap '$root rm -f $policy' EXIT
fi
install() {
    xargs -a packages.txt $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install \
        -y --no-install-recommends >/dev/null
}
install 2>/dev/null || { $root apt-get -qq update && install; }
if [ -d /run/systemd/system ]; then
    $root systemctl disable --quiet mariadb munge slurmctld slurmd slurmdbd
fi
