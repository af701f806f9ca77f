#!/usr/bin/env bash
# Remake docs/report.png from the demo's page: make demo screenshot (needs Chromium).
set -euo pipefail
cd "$(dirname "$0")/.."
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
"$browser" --headless --no-sandbox --disable-gpu --disable-background-networking --disable-sync --no-first-run \
  --disable-component-update --user-data-dir="$profile" --hide-scrollbars --window-size=1200,920 \
  --screenshot="$PWD/docs/report.png" "file://$(realpath "${1:-demo/report.html}")" 2>/dev/null
