"""The one exception tree. A foreign error is mapped into it at the border (``raise ... from``).

::

    EnergyoptError                     exit 1   HTTP 500
    ├── UsageError                     exit 2   HTTP 400   what the caller gave is wrong
    │   ├── ConfigError                                    unknown key, value out of range
    │   ├── SloError                                       unparsable or unknown SLO
    │   ├── RequestError                                   an inference request that cannot be served
    │   │   └── PromptTooLongError
    │   └── NotFoundError                       HTTP 404   no such study, model or artifact
    ├── ModelError                     exit 1              a model that cannot be loaded
    │   ├── ModelNotFoundError                  HTTP 404
    │   ├── ModelFormatError                               truncated, malformed, missing tensor
    │   └── UnsupportedModelError                          unknown architecture or quantization
    ├── EngineError                    exit 1
    │   ├── OverloadedError                     HTTP 503   carries ``retry_after``
    │   ├── DeadlineError                       HTTP 504   the request's own time limit passed before its first token
    │   └── EngineDeadError                     HTTP 503   the step loop ended; nothing more will be served
    ├── TelemetryError                 exit 1
    │   ├── SensorError                                    one reading failed; others go on
    │   └── SensorUnavailableError                         this machine has no such sensor, or no permission
    ├── ControlError                   exit 1              a power limit that could not be set or restored
    ├── StoreError                     exit 1              the database refused
    │   └── HeldError                                      somebody else works on it
    ├── TrialError                     exit 1              one trial failed
    │   ├── LaunchError                                    the engine did not start
    │   ├── OutOfMemoryError                               it did not fit
    │   ├── CrashError                                     the process died
    │   └── TrialTimeoutError                              it did not finish in its time
    └── NoFeasibleError                exit 3   HTTP 409   no configuration keeps the SLO

The message is one sentence for the user: it names the value and what is allowed.
"""

from __future__ import annotations


class EnergyoptError(Exception):
    """Base of everything this project raises on purpose."""

    exit_code = 1
    http_status = 500

    @property
    def message(self) -> str:
        """The sentence shown to the user."""
        return str(self)


class UsageError(EnergyoptError):
    """What the caller gave is wrong; nothing was changed."""

    exit_code = 2
    http_status = 400


class ConfigError(UsageError):
    """A configuration with an unknown key or a value that is not allowed."""


class SloError(UsageError):
    """An SLO that does not parse or names an unknown metric or statistic."""


class RequestError(UsageError):
    """An inference request that cannot be served as asked.

    ``param`` names the offending field of the request body, if one can be named.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(RequestError):
    """The prompt, or the prompt plus the tokens asked for, exceeds the context."""


class NotFoundError(UsageError):
    """A study, trial, artifact or route that does not exist."""

    http_status = 404


class ModelError(EnergyoptError):
    """A model that cannot be loaded."""


class ModelNotFoundError(ModelError):
    """No such file, directory or alias; the message names the command that installs it, if one does."""

    http_status = 404


class ModelFormatError(ModelError):
    """A model file that is truncated or malformed, or lacks or misshapes a tensor."""


class UnsupportedModelError(ModelError):
    """A well-formed model of an architecture or quantization that this version does not know."""


class EngineError(EnergyoptError):
    """The engine could not serve."""


class OverloadedError(EngineError):
    """The queue is full. ``retry_after`` (seconds) is the estimate for the next free place."""

    http_status = 503

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(EngineError):
    """The time that the client gave its request passed before it had a token."""

    http_status = 504


class EngineDeadError(EngineError):
    """The step loop has ended; every pending request received this error."""

    http_status = 503


class TelemetryError(EnergyoptError):
    """A measurement problem."""


class SensorError(TelemetryError):
    """One reading of one sensor failed. The sampler counts it and goes on."""


class SensorUnavailableError(TelemetryError):
    """The sensor does not exist on this machine or may not be read; the message says which and how to mend it."""


class ControlError(EnergyoptError):
    """A power limit or clock that could not be set, read back or restored."""


class StoreError(EnergyoptError):
    """The results database refused: unreachable, not writable, locked, or of another version."""


class HeldError(StoreError):
    """Somebody else works on it at this moment; the database itself is well."""


class TrialError(EnergyoptError):
    """One trial failed. ``status`` is the word stored with the trial."""

    status = "failed"


class LaunchError(TrialError):
    """The engine of the trial did not start."""

    status = "launch_failed"


class OutOfMemoryError(TrialError):
    """The configuration did not fit into memory."""

    status = "oom"


class CrashError(TrialError):
    """The process of the trial died."""

    status = "crashed"


class TrialTimeoutError(TrialError):
    """The trial did not finish within its time."""

    status = "timeout"


class NoFeasibleError(EnergyoptError):
    """Every measured configuration misses an SLO, did not fit or did not start."""

    exit_code = 3
    http_status = 409
