#!/bin/sh
# An array job: part i of 8 of the rows a task, on nodes of one kind; then the merge, once.
#
#   job=$(sbatch --parsable examples/recipes/slurm.sh)
#   sbatch --dependency=afterok:$job --array=0 --export=ALL,MERGE=1 examples/recipes/slurm.sh
#
#SBATCH --array=0-7
#SBATCH --cpus-per-task=4
#SBATCH --constraint=one-kind-of-node
set -eu
if [ "${MERGE:-0}" = 1 ]; then
  cke fidelity merge "$OUT"/shard-0 "$OUT"/shard-1 "$OUT"/shard-2 "$OUT"/shard-3 \
    "$OUT"/shard-4 "$OUT"/shard-5 "$OUT"/shard-6 "$OUT"/shard-7 \
    --capture "$ARTIFACT/reference" --suite "$ARTIFACT/suite" --out "$OUT/merged"
else
  cke fidelity score "$CANDIDATE" --capture "$ARTIFACT/reference" --suite "$ARTIFACT/suite" \
    --out "$OUT/shard-$SLURM_ARRAY_TASK_ID" --shard "$SLURM_ARRAY_TASK_ID/8"
fi
