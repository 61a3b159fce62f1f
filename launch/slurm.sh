#!/usr/bin/env bash
# One run over several SLURM nodes, one process a node. Before the time limit it saves and queues itself again.
#
#   sbatch launch/slurm.sh run_lra.py --config=configs/listops.py --workdir=/shared/runs/listops
#   sbatch --nodes=8 --partition=gpu --time=4:00:00 launch/slurm.sh run_lra.py …   # sbatch's flags come first
#
# Call it in the clone, with the .venv of README there, or set PYTHON. All nodes must see the clone, --workdir
# and $NYSTROMFORMER_JAX_CACHE (else each node prepares data of its own).
#
# `scancel --signal=TERM JOB` makes it save and queue again, `scancel JOB` ends it. Of the lines below, nodes, GPUs,
# cores and time are yours to change; on nodes without GPUs drop theirs.
#
#SBATCH --job-name=nystromformer
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

fail() {
  echo "slurm.sh: $1" >&2
  exit 2
}

python=${PYTHON:-.venv/bin/python}
[[ -n ${SLURM_JOB_ID:-} ]] ||
  fail "sbatch starts this script: sbatch launch/slurm.sh run_lra.py --config=configs/listops.py"
[[ -f ${1:-} ]] || fail "the first argument must be a runner in $PWD, such as run_lra.py; got '${1:-}'"
command -v "$python" >/dev/null || fail "$python does not exist in $PWD: install as README says, or set PYTHON"

# Left alone, jax gives a process under SLURM one GPU, that of its number on the node. One process a node is
# to have them all; with --ntasks-per-node=4, a process for each of four GPUs, jax's choice is right.
gpus=${SLURM_GPUS_ON_NODE:-0}
if ((gpus > 1 && ${SLURM_NTASKS_PER_NODE:-1} == 1)); then
  JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((gpus - 1)))
  export JAX_LOCAL_DEVICE_IDS
fi

# --kill-on-bad-exit=0: the first process that ends with 143 must not take along those that still save.
code=0
srun --label --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" "$python" "$@" --distributed || code=$?
if ((code == 143)); then # stopped by SIGTERM with everything saved; the same command resumes
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
