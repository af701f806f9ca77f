"""python -m vlbm."""

from vlbm.cli import main

main()
