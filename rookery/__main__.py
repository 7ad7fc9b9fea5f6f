"""`python -m rookery`: the command, wherever its script is not on the PATH."""

from rookery.cli import main

main()
