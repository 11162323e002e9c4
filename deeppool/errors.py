"""Exceptions of deeppool.

DeeppoolError
├── CaptureError             the model cannot become a layer graph
├── ProfileError             layer times cannot be measured
│   └── MissingProfileError  a profile cannot answer for a layer and batch
├── PlanError                no plan can be made of these inputs
├── MissingStepsError        the steps that a global batch needs are unknown
├── DocumentError            a file cannot be read, is no valid record, or cannot be written
├── DeviceUnavailableError   the requested device is not on this machine
├── InvalidValueError        an argument is out of its bounds (also a ValueError)
└── RunError                 a live run cannot start or go on
    ├── RankFailedError      one rank died or hung; the others were stopped
    │   └── RankRefusedError one rank failed for a reason that a restart does not change
    └── RunCancelledError    the run was cancelled

Each message gives the fact with its values, the bound, and the next step, in one line: the command
line prints it as it is and exits with 1.
"""


class DeeppoolError(Exception):
    """Base class of all errors of deeppool."""


class CaptureError(DeeppoolError):
    """Raised when the model cannot become a static layer graph."""


class ProfileError(DeeppoolError):
    """Raised when layer times cannot be measured."""


class MissingProfileError(ProfileError):
    """Raised when the profile has no answer for a layer at a per-GPU batch."""


class PlanError(DeeppoolError):
    """Raised when no plan exists for the inputs."""


class MissingStepsError(DeeppoolError):
    """Raised when the model of steps to accuracy has no answer for a global batch."""


class DocumentError(DeeppoolError):
    """Raised when a file cannot be read, is not a valid record, or cannot be written."""

    record: object = None
    """Record that could not be written, so that nothing measured is lost with it."""


class DeviceUnavailableError(DeeppoolError):
    """Raised when the requested device is not on this machine."""


class InvalidValueError(DeeppoolError, ValueError):
    """Raised when an argument is out of its bounds."""


class RunError(DeeppoolError):
    """Raised when a live run cannot start or continue."""


class RankFailedError(RunError):
    """Raised when one rank died or hung; the others were stopped."""

    rank: int | None = None
    """Rank that failed first, or None if it is unknown."""


class RankRefusedError(RankFailedError):
    """Raised when one rank failed for a reason that a restart does not change; the others were stopped."""


class RunCancelledError(RunError):
    """Raised when a live run was cancelled, after it has ended."""
