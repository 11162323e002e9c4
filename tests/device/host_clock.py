"""A clock for waits of a host."""


class HostClock:
    """Clock that advances only when a test advances it, and in waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait_until(self, moment: float) -> None:
        self.now = max(self.now, moment)
