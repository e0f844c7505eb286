#!/bin/sh
# Runs a script with the project's own Node 24, installing it and the npm packages first where they are missing or stale.
# The Node on the machine may be old (end of life 20); npm must run under 24, or it silently picks older releases.
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
version=24.21.0
case "$(uname -m)" in
  x86_64) arch=x64 ;;
  aarch64) arch=arm64 ;;
  *) echo "cloche: no Node build for $(uname -m); x86_64 and aarch64 are supported" >&2; exit 1 ;;
esac
stamp=node_modules/.cloche-installed
want=$(cat package-lock.json scripts/node.sh | sha256sum | cut -d' ' -f1)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
  (
    flock 9 # two commands on a fresh clone must not install at once
    umask 022
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
      if [ ! -x ".node/node_modules/.bin/node" ] || [ "$(.node/node_modules/.bin/node -v)" != "v$version" ]; then
        echo "==> fetching Node $version from the npm registry" >&2
        npm install --silent --no-save --no-package-lock --prefix .node "node-linux-$arch@$version" >&2 ||
          { echo "cloche: could not fetch Node $version; check the network to the npm registry and run again" >&2; exit 1; }
      fi
      echo "==> installing npm packages" >&2
      PATH="$root/.node/node_modules/.bin:$PATH" npm ci --silent >&2 ||
        { echo "cloche: npm ci failed; check the network to the npm registry and run again" >&2; exit 1; }
      echo "$want" > "$stamp"
    fi
  ) 9> .node.lock
fi
PATH="$root/node_modules/.bin:$PATH"
# What was compiled once is not compiled again: a start takes half the time.
NODE_COMPILE_CACHE="${NODE_COMPILE_CACHE:-$root/node_modules/.cache/node}"
# An upload of a checkpoint has eight pieces at work at once; with Node's four threads all else waits behind them.
UV_THREADPOOL_SIZE="${UV_THREADPOOL_SIZE:-16}"
export PATH NODE_COMPILE_CACHE UV_THREADPOOL_SIZE
exec node --disable-warning=ExperimentalWarning "$@"
