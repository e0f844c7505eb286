#!/bin/sh
# npm start / npm stop: `cloche up` and `cloche down` under the project's own Node.
set -eu
exec sh "$(dirname -- "$0")/node.sh" packages/app/src/main.ts "$@"
