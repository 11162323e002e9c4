"""Entry point of a rank's process; see :mod:`deeppool.execution.worker` for the protocol.

Commands: ``setup`` (once), ``add`` and ``remove`` a job, ``train`` with steps of each job, ``save`` and ``load`` with a
job and a checkpoint's folder, ``exit``.
"""

from deeppool.execution.worker import serve
from deeppool.interleaving.crossover.rank import CrossoverRank


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(CrossoverRank)


if __name__ == "__main__":
    main()
