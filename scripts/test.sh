#!/bin/sh
# npm test: all tests, or the parts named (npm test -- unit e2e), under the project's own Node. Sets up what they need.
set -eu
exec sh "$(dirname -- "$0")/node.sh" tests/main.ts "$@"
