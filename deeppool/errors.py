"""Every error that deeppool raises on purpose.

DeeppoolError
├── CaptureError             the model cannot become a layer graph
├── ProfileError             layer times cannot be measured
│   └── MissingProfileError  a profile cannot answer for a layer and batch
├── PlanError                no plan can be made of these inputs
├── MissingStepsError        the steps that a global batch needs are unknown
├── DocumentError            a file cannot be read, is no valid record, or cannot be written
├── DeviceUnavailableError   the device asked for is not on this machine
├── InvalidValueError        an argument is out of its bounds (also a ValueError)
└── RunError                 a live run cannot start or go on
    ├── RankFailedError      one rank died or hung; the others were stopped
    │   └── RankRefusedError one rank failed for a reason that a restart does not change
    └── RunCancelledError    the run was cancelled

Each message gives the fact with its values, the bound, and the next step, in one line: the command
line prints it as it is and exits with 1.
"""


class DeeppoolError(Exception):
    """Root of the tree above."""


class CaptureError(DeeppoolError):
    """The model cannot become a static layer graph."""


class ProfileError(DeeppoolError):
    """Layer times cannot be measured."""


class MissingProfileError(ProfileError):
    """The profile has no answer for this layer at this per-GPU batch."""


class PlanError(DeeppoolError):
    """No plan can be made of these inputs."""


class MissingStepsError(DeeppoolError):
    """The model of steps to accuracy has no answer for this global batch."""


class DocumentError(DeeppoolError):
    """A file cannot be read, is not what it should be, or cannot be written."""


class DeviceUnavailableError(DeeppoolError):
    """The device asked for is not on this machine."""


class InvalidValueError(DeeppoolError, ValueError):
    """An argument is out of its bounds."""


class RunError(DeeppoolError):
    """A live run cannot start or go on."""


class RankFailedError(RunError):
    """One rank died or hung; the others were stopped."""


class RankRefusedError(RankFailedError):
    """One rank failed for a reason that a restart does not change; the others were stopped."""


class RunCancelledError(RunError):
    """A live run was cancelled, and has ended."""
