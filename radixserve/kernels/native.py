"""Whether the compiled extension is here and usable, and the extension itself."""

from __future__ import annotations

import os

from radixserve.errors import BackendUnavailableError

__all__ = ["VARIANT_VARIABLE", "extension", "is_available", "require", "why_not"]

VARIANT_VARIABLE = "RADIXSERVE_KERNELS"
"""Environment variable that names the variant to use instead of the best one."""

_reason = ""
try:
    import radixserve.kernels._native as extension
except ImportError as error:
    extension = None  # type: ignore[assignment]
    _reason = (
        f"the native kernels are not built ({error}): "
        "install radixserve again where a C++20 compiler is found"
    )


def is_available() -> bool:
    """Whether the kernels can be used; everything else of this package needs it to be true."""
    return not _reason


def why_not() -> str:
    """Return why the kernels cannot be used, as a sentence; empty if they can."""
    return _reason


def require() -> None:
    """Return if `extension` can be used.

    Raises:
        BackendUnavailableError: it is not here, or cannot be used as asked.
    """
    if _reason:
        raise BackendUnavailableError(_reason)


def _choose_variant(wanted: str) -> str:
    """Use the variant that the environment asks for; return why not."""
    try:
        extension.set_variant(wanted)
    except ValueError as error:
        return f"{VARIANT_VARIABLE}={wanted}: {error}"
    return ""


if not _reason and os.environ.get(VARIANT_VARIABLE):
    _reason = _choose_variant(os.environ[VARIANT_VARIABLE])
