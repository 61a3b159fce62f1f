#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU slice (v2 to v6e; later versions are only available on GKE) with gcloud.
#
#   export TPU=my-slice ZONE=us-west4-a
#   launch/tpu_vm.sh create --spot     # requests a slice of $TYPE; flags are passed to gcloud
#   GIT=https://HOST/nystromformer-jax NFS=10.0.0.2:/share launch/tpu_vm.sh install
#   launch/tpu_vm.sh run run_lra.py --config=configs/listops.py --workdir=/mnt/shared/runs/listops
#   launch/tpu_vm.sh stop              # SIGTERM to one host: all hosts save and stop
#   launch/tpu_vm.sh delete
#
# All hosts write a part of each checkpoint to the same folder, so `install` mounts an NFS share (for example
# Filestore) at /mnt/shared, and --workdir must be there. `run` needs a stable connection; if it is lost, call
# `stop` before the next `run`. The default of TYPE is v5litepod-16. RUNTIME is the image for this TYPE, by default
# v2-alpha-tpuv5-lite (v6e: v2-alpha-tpuv6e, v5p: v2-alpha-tpuv5).
set -euo pipefail

SHARED=/mnt/shared

fail() {
  echo "tpu_vm.sh: $1" >&2
  exit 2
}
need() { [[ -n ${!1:-} ]] || fail "set $1 to $2"; }
on() { gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker="$1" --command="$2"; }

command=${1:-}
[[ $command =~ ^(create|install|run|stop|delete)$ ]] ||
  fail "the first argument must be create, install, run, stop or delete; got '$command'"
shift
need TPU "the name of the slice"
need ZONE "its zone, such as us-west4-a"

case $command in
  create)
    gcloud compute tpus queued-resources create "$TPU" --node-id="$TPU" --zone="$ZONE" \
      --accelerator-type="${TYPE:-v5litepod-16}" --runtime-version="${RUNTIME:-v2-alpha-tpuv5-lite}" "$@"
    echo "Install once this says ACTIVE: gcloud compute tpus queued-resources describe $TPU --zone=$ZONE"
    ;;
  install)
    need GIT "the URL to clone the code from"
    need NFS "the share that all hosts mount, such as 10.0.0.2:/share"
    printf -v git %q "$GIT"
    printf -v nfs %q "$NFS"
    # uv: the images have Python 3.10, but the code needs 3.11. Lock timeout: a new machine is still updating.
    on all "set -e
      sudo apt-get -qq -o DPkg::Lock::Timeout=600 update
      sudo apt-get -qq -o DPkg::Lock::Timeout=600 install -y nfs-common
      sudo mkdir -p $SHARED
      mountpoint -q $SHARED || sudo mount -t nfs $nfs $SHARED
      test -w $SHARED || sudo chmod 1777 $SHARED
      test -d nystromformer-jax || git clone $git nystromformer-jax
      cd nystromformer-jax
      git pull --ff-only
      python3 -m pip install --quiet --user uv
      ~/.local/bin/uv venv --allow-existing --python 3.12 .venv
      ~/.local/bin/uv pip install -e '.[lra,tpu]'"
    ;;
  run)
    [[ " $* " == *" --workdir=$SHARED/"* ]] ||
      fail "run needs --workdir=$SHARED/FOLDER, which all hosts see, after the runner's name"
    printf -v arguments '%q ' "$@"
    on all "cd nystromformer-jax && exec env NYSTROMFORMER_JAX_CACHE=$SHARED/cache \
      .venv/bin/python -u $arguments --distributed"
    ;;
  stop) on 0 "pkill -TERM -o -f '[-]-distributed'" ;; # the brackets keep pkill from matching its own shell
  delete) gcloud compute tpus queued-resources delete "$TPU" --zone="$ZONE" --force "$@" ;;
esac
