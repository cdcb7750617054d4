#!/bin/sh
# HANGSCOPE_ON_HANG="exec:sh /shared/slurm_on_hang.sh": the verdict as the job's comment, which
# `squeue -o "%i %k"` and `sacct -o jobid,comment` show. With DRAIN=1, hosts that the evidence says
# to exclude are drained, with the headline as the reason (needs an operator's rights).
# The event comes on standard input.
set -eu
event=$(cat)
field() {
    printf '%s' "$event" | python3 -c "import json, sys; event = json.load(sys.stdin); print($1)"
}
headline=$(field 'event["headline"]')
scontrol update "JobId=$SLURM_JOB_ID" "Comment=HangScope: $headline"
excluded=$(field '",".join((event["action"] or {}).get("hosts", []))')
if [ "${DRAIN:-0}" = 1 ] && [ -n "$excluded" ]; then
    scontrol update "NodeName=$excluded" State=DRAIN "Reason=HangScope: $headline"
fi
