"""Entry point of ``python -m deeppool.cli``."""

from deeppool.cli import main

main()
