#!/bin/sh
# Writes a report of what takes up space below a directory, and says where it is.
#
#   report.sh [DIRECTORY]      the default is the current directory
#
# The report goes to $TMPDIR (else /tmp), under one name a day. It is complete before it gets that name, so nobody reads
# half of one. Two of these at once would read the same disk twice and replace each other's report: run it under `claim`.
set -eu

directory=${1:-.}
target=${TMPDIR:-/tmp}/disk-usage-$(id -u)-$(date +%F).txt

draft=$(mktemp "$target.XXXXXX")
trap 'rm -f "$draft"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

{
    echo "Disk usage below $(cd "$directory" && pwd), $(date '+%F %T')"
    # Set by claim: of two reports, the one with the larger number is the later.
    echo "Custody ${CLAIM_FENCE:-(not run under claim)} of ${CLAIM_NAME:-no claim}"
    echo
    # What may not be read is left out, and is no reason to have no report.
    du -xk "$directory" 2>/dev/null | sort -rn | head -n 20 || true
    echo
    df -k "$directory"
} >"$draft"

mv -f "$draft" "$target"
echo "$target"
