"""Every exception radixserve raises on purpose.

    RadixServeError
      ConfigError                     at start-up only; names the key and what is allowed
        ModelLoadError                a model folder cannot be used; names the file
      RequestError                    the caller's fault; has status_hint, code and param
        InvalidRequestError     400
          PromptTooLongError    400
          UnsupportedFeatureError 400
          UnsupportedGrammarError 400   what the output must look like cannot be enforced
          GrammarLimitError     400     ran into a limit while it was followed
        AuthenticationError     401
        PermissionDeniedError   403
        ModelNotFoundError      404
        PinNotFoundError        404
        StoredObjectNotFoundError 404 no such file or batch, or another caller's
        PinRefusedError         409   nothing is cached, or the budget for holds is spent
        StoredObjectBusyError   409   a batch is using the file, or has ended
        ForkNotFoundError       404   the call to go on from is not kept any more
        RequestTooLargeError    413
        QueueFullError          429   carries retry_after_s
        ShuttingDownError       503
      RequestAbortedError             raised to a stream's reader when the server ended it
      RequestTimeoutError       504   the request's own timeout_s was up before its first token
      BackendError              500   device or kernel failed: this step's requests fail
        BackendUnavailableError       at selection: says what is missing
      EngineDeadError           503   the engine's loop has stopped; /health goes red
      BatchError                      a batch file cannot be run to its end
      ProgramError                    a prompt program went wrong; its notes name the call
        RoleError                     turns are nested, or text and turns are mixed
        IncompleteError               a value was cut before it was whole; carries `partial`
        ValidationFailedError         no attempt gave a value of the type; carries `attempts`
        StepLimitError                an agent used up its steps; carries `partial`
        BudgetExceededError           a run computed more tokens than it may
        UnsupportedByBackendError     the backend cannot do this; says what to do instead
        ReplayMismatchError           a recorded run differs; names the first call that does
      InvariantError                  our bug: numbered, with a dump of the state

`RequestError` says what the *caller* should change. `InvariantError` says that *we* are wrong and
that nothing can be relied on afterwards. Inside `core`, "it does not fit" is a value, not an
exception.
"""

from __future__ import annotations


class RadixServeError(Exception):
    """Root of the tree; never raised itself."""

    retry_after_s: float | None = None
    """After how many seconds the same may be asked again; None where that is no use."""


class ConfigError(RadixServeError):
    """A setting cannot be used. Raised before any port is opened."""


class ModelLoadError(ConfigError):
    """A model cannot be loaded; the message names the file or the setting at fault."""


class RequestError(RadixServeError):
    """The caller's fault.

    Args:
        message: A sentence that tells the caller what to change.
        param: The field at fault, in the caller's words, when there is one.
    """

    status_hint: int = 400
    code: str = "invalid_request"
    error_type: str = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequestError(RequestError):
    """A field is missing, has the wrong type or is out of range."""

    code = "invalid_value"


class PromptTooLongError(InvalidRequestError):
    """Prompt and output cannot fit in the context or in the KV pool, however long they wait."""

    code = "context_length_exceeded"


class UnsupportedFeatureError(InvalidRequestError):
    """A field is known, but what it asks for is not built."""

    code = "unsupported_parameter"


class UnsupportedGrammarError(InvalidRequestError):
    """A schema, a regex or a grammar is wrong, too large, or uses what cannot be enforced.

    The message names the part. Nothing is ever enforced by half.
    """

    code = "unsupported_grammar"


class GrammarLimitError(InvalidRequestError):
    """A grammar ran into a limit on the work of one step while an output followed it."""

    code = "grammar_limit"


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    status_hint = 401
    code = "invalid_api_key"
    error_type = "authentication_error"


class PermissionDeniedError(RequestError):
    """The caller is known, but this needs an admin key."""

    status_hint = 403
    code = "admin_key_required"
    error_type = "permission_error"


class ModelNotFoundError(RequestError):
    """The named model is not served here."""

    status_hint = 404
    code = "model_not_found"
    error_type = "not_found_error"


class PinNotFoundError(RequestError):
    """There is no pin of that name."""

    status_hint = 404
    code = "pin_not_found"
    error_type = "not_found_error"


class PinRefusedError(RequestError):
    """A pin cannot be had now; the message says why, with the numbers."""

    status_hint = 409
    code = "pin_refused"
    error_type = "conflict_error"


class ForkNotFoundError(RequestError):
    """The call to go on from is not kept any more, or never was: send the whole prompt."""

    status_hint = 404
    code = "fork_not_found"
    error_type = "not_found_error"


class StoredObjectNotFoundError(RequestError):
    """There is no such file or batch, or it is another caller's."""

    status_hint = 404
    code = "object_not_found"
    error_type = "not_found_error"


class StoredObjectBusyError(RequestError):
    """A file or a batch is in a state that does not allow this; the message says in which."""

    status_hint = 409
    code = "object_busy"
    error_type = "conflict_error"


class RequestTooLargeError(RequestError):
    """The body is over the size limit."""

    status_hint = 413
    code = "request_too_large"


class QueueFullError(RequestError):
    """Too many requests are waiting; try again after `retry_after_s` seconds."""

    status_hint = 429
    code = "queue_full"
    error_type = "rate_limit_error"

    retry_after_s: float

    def __init__(self, message: str, *, retry_after_s: float = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDownError(RequestError):
    """The server is finishing what runs and takes nothing new."""

    status_hint = 503
    code = "shutting_down"
    error_type = "service_unavailable_error"


class RequestAbortedError(RadixServeError):
    """The server ended this request before it was finished; the message says why."""

    status_hint = 503
    code = "request_aborted"
    error_type = "service_unavailable_error"


class RequestTimeoutError(RadixServeError):
    """The request's own time was up before its first token."""

    status_hint = 504
    code = "timeout"
    error_type = "timeout_error"


class BackendError(RadixServeError):
    """The forward pass failed. The requests of that step fail; the engine goes on."""

    status_hint = 500
    code = "backend_error"
    error_type = "internal_server_error"


class BackendUnavailableError(BackendError):
    """A backend was asked for by name and cannot run here; says what is missing."""


class EngineDeadError(RadixServeError):
    """The engine's loop has stopped and takes no more requests."""

    status_hint = 503
    code = "engine_dead"
    error_type = "service_unavailable_error"


class InvariantError(RadixServeError):
    """A numbered invariant of `core.invariants` is broken: a bug in radixserve, please report it.

    Args:
        number: The invariant's number, 0 for a misuse of an internal contract.
        message: What was found, and where.
    """

    status_hint = 500
    code = "internal_error"
    error_type = "internal_server_error"

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"invariant {number}: {message}")
        self.number = number


class BatchError(RadixServeError):
    """A batch file cannot be run to its end: the disk is full, or the file was changed."""


class ProgramError(RadixServeError):
    """A prompt program went wrong."""


class RoleError(ProgramError):
    """Turns are nested, or plain text and turns are mixed."""


class IncompleteError(ProgramError):
    """A typed value was cut before it was whole.

    Args:
        partial: The text there is.
        reason: length or timeout.
    """

    def __init__(self, message: str, *, partial: str, reason: str) -> None:
        super().__init__(message)
        self.partial = partial
        self.reason = reason


class ValidationFailedError(ProgramError):
    """No attempt gave a value of the type.

    Args:
        attempts: (text, why it is none) of each attempt.
    """

    def __init__(self, message: str, *, attempts: tuple[tuple[str, str], ...]) -> None:
        super().__init__(message)
        self.attempts = attempts


class StepLimitError(ProgramError):
    """An agent used up its steps without an answer.

    Args:
        partial: What it wrote last.
    """

    def __init__(self, message: str, *, partial: str) -> None:
        super().__init__(message)
        self.partial = partial


class BudgetExceededError(ProgramError):
    """A run computed more tokens than it may."""


class UnsupportedByBackendError(ProgramError):
    """The backend cannot do what a call needs; the message says what to do instead."""


class ReplayMismatchError(ProgramError):
    """A replayed run differs from the recorded one; the message names the first call that does."""
