#!/usr/bin/env bash
# Trains on all hosts of a TPU slice on a GKE cluster created by xpk; replaces gke_jobset.yaml with one command.
#
#   export CLUSTER=my-cluster ZONE=us-west4-a PROJECT=my-project IMAGE=us-docker.pkg.dev/… STORAGE=my-share
#   launch/xpk.sh run_lra.py --config=configs/listops.py --workdir=/shared/runs/listops
#   xpk workload delete --workload=nystromformer --cluster=$CLUSTER --zone=$ZONE --project=$PROJECT
#
# IMAGE contains the clone (launch/README.md). STORAGE is a Filestore of the cluster, created by `xpk storage create
# --type=gcpfilestore --access-mode=ReadWriteMany --mount-point=/shared --readonly=false …`; for another mount point
# set SHARED. The defaults of NAME, TYPE and SLICES are nystromformer, v5litepod-16 and 1. Delete a finished workload
# before its name is used again. Checkpoints are kept, and the same command resumes the run.
set -euo pipefail

fail() {
  echo "xpk.sh: $1" >&2
  exit 2
}
need() { [[ -n ${!1:-} ]] || fail "set $1 to $2"; }

need CLUSTER "the cluster's name"
need ZONE "the cluster's zone, such as us-west4-a"
need PROJECT "the Google Cloud project"
need IMAGE "the image that holds the clone"
need STORAGE "the name of a storage that all hosts can write to, from xpk storage list"
shared=${SHARED:-/shared}
[[ ${1:-} == run_*.py ]] || fail "the first argument must be a runner, such as run_lra.py; got '${1:-}'"
[[ " $* " == *" --workdir=$shared/"* ]] || fail "pass --workdir=$shared/FOLDER, which all hosts see"

# exec: xpk forwards SIGTERM to the shell that it starts; exec replaces the shell with Python. Exit codes 1 and 134
# (a lost host; 134 if jax detects it first) and 2 (hosts that did not find each other) restart the workload like
# 143. An invalid flag also exits with 2, so it is retried just as often.
printf -v arguments '%q ' "$@"
xpk workload create \
  --cluster="$CLUSTER" --zone="$ZONE" --project="$PROJECT" --workload="${NAME:-nystromformer}" \
  --tpu-type="${TYPE:-v5litepod-16}" --num-slices="${SLICES:-1}" \
  --docker-image="$IMAGE" --storage="$STORAGE" \
  --env="NYSTROMFORMER_JAX_CACHE=$shared/cache" --env=PYTHONUNBUFFERED=1 \
  --max-restarts=20 --restart-on-exit-codes=1,2,134 --termination-grace-period-seconds=300 \
  --command="exec python $arguments --distributed"
