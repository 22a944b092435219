#!/bin/bash
# Two nodes with 8 GPUs each train as one run: sbatch deploy/slurm.sh
# One task for each node, which takes all of its GPUs. Not run on GPUs so far.
#SBATCH --job-name=jaxcomp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
# Slurm sends SIGTERM so many seconds before the time is over: the run saves and ends.
#SBATCH --signal=B:TERM@300
# One task for each GPU: --ntasks-per-node=8 and --cpus-per-task=8; the rest stays.

set -euo pipefail

RUN=${RUN:-/shared/runs/first}  # seen by all nodes under this path
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}

srun --kill-on-bad-exit=1 \
  python train.py --config=configs/default.py --workdir="$RUN" \
  --config.workers=0 --config.platform=gpu --coordinator=auto --join-timeout=900 &
step=$!

again() {
  kill -TERM "$step"
  wait "$step" || true
  scontrol requeue "$SLURM_JOB_ID"
}
trap again TERM

wait "$step"
