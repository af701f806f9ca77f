#!/usr/bin/env bash
# Remake docs/report.png from the demo's page: make demo && scripts/screenshot.sh (needs Chromium).
set -euo pipefail
cd "$(dirname "$0")/.."
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
"$browser" --headless --no-sandbox --disable-gpu --disable-background-networking --disable-sync --no-first-run \
  --user-data-dir="$profile" --hide-scrollbars --window-size=1100,800 \
  --screenshot="$PWD/docs/report.png" "file://$PWD/${1:-demo/report.html}" 2>/dev/null
