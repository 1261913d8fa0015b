#!/usr/bin/env bash
# ALCF's one line, under its own name; every setting is a variable:
#   TP=2 NLAYERS=10 DATA_FILE_LIST=books.txt bash examples/train_aGPT_7B.sh
set -euo pipefail

here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
exec bash "${here}/../train_7B.sh" "$@"
