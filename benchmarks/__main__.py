"""python benchmarks: run them all, or `--only` some, and show what they found."""

from running import main

main()
