#!/usr/bin/env bash
# Trains on several SLURM nodes, one process per node. Before the time limit, the job saves and requeues itself.
#
#   sbatch launch/slurm.sh run_lra.py --config=configs/listops.py --workdir=/shared/runs/listops
#   sbatch --nodes=8 --partition=gpu --time=4:00:00 launch/slurm.sh run_lra.py …   # sbatch's flags come first
#
# Run it in the clone, with a .venv as in README, or set PYTHON. All nodes must be able to read and write the
# clone, --workdir and $NYSTROMFORMER_JAX_CACHE (without a shared cache, each node prepares the data).
#
# `scancel --signal=TERM JOB` saves and requeues the job; `scancel JOB` ends it. Adapt the numbers of nodes, GPUs
# and cores and the time limit below; on nodes without GPUs, delete the line --gpus-per-node.
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

# By default, jax assigns one GPU to each process under SLURM, by its local rank. With one process per node, the
# process must use all GPUs. With one process per GPU (--ntasks-per-node=4), the default is right.
gpus=${SLURM_GPUS_ON_NODE:-0}
if ((gpus > 1 && ${SLURM_NTASKS_PER_NODE:-1} == 1)); then
  JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((gpus - 1)))
  export JAX_LOCAL_DEVICE_IDS
fi

# --kill-on-bad-exit=0: when a process exits with 143, srun must not kill processes that are still saving.
code=0
srun --label --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" "$python" "$@" --distributed || code=$?
if ((code == 143)); then # stopped by SIGTERM with everything saved; the same command resumes
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
