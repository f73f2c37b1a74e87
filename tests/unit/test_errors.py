"""The tree drawn in `errors` is the tree of classes, and each error can be answered over HTTP."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from radixserve import errors

LINE = re.compile(r"^( +)([A-Z]\w+Error)(?: +(\d{3}))?(?: .*)?$")


def drawn_tree() -> dict[str, tuple[str | None, int | None]]:
    """Class name -> (parent's name, status), read from the docstring's drawing."""
    tree: dict[str, tuple[str | None, int | None]] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        indent, name, status = len(match[1]), match[2], match[3]
        while path and path[-1][0] >= indent:
            path.pop()
        tree[name] = (path[-1][1] if path else None, int(status) if status else None)
        path.append((indent, name))
    return tree


def classes() -> list[type[Exception]]:
    """Every exception class that `errors` defines."""
    return [
        cls
        for _, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.RadixServeError)
    ]


def leaves(root: type[Exception]) -> list[type[Exception]]:
    """The classes below `root`, itself included, that may be raised for one cause."""
    return [cls for cls in classes() if issubclass(cls, root) and cls is not root]


def test_the_drawn_tree_is_the_real_tree() -> None:
    real = {
        cls.__name__: cls.__base__.__name__ if cls is not errors.RadixServeError else None
        for cls in classes()
        if cls.__base__ is not None
    }
    assert {name: parent for name, (parent, _) in drawn_tree().items()} == real


def test_the_drawn_statuses_are_the_real_ones() -> None:
    drawn = {name: status for name, (_, status) in drawn_tree().items() if status is not None}
    assert drawn
    assert {name: getattr(errors, name).status_hint for name in drawn} == drawn


@pytest.mark.parametrize("cls", leaves(errors.RequestError))
def test_a_request_error_has_a_code_of_its_own_and_a_client_or_busy_status(cls: Any) -> None:
    assert "code" in vars(cls)
    assert cls.status_hint in {400, 401, 403, 404, 409, 413, 429, 503}
    assert cls.error_type.endswith("_error")


def test_no_two_errors_share_a_code() -> None:
    codes = [vars(cls)["code"] for cls in classes() if "code" in vars(cls)]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    "cls",
    [
        errors.RequestAbortedError,
        errors.BackendError,
        errors.BackendUnavailableError,
        errors.EngineDeadError,
        errors.InvariantError,
    ],
)
def test_an_error_of_ours_answers_with_a_server_status(cls: Any) -> None:
    assert 500 <= cls.status_hint < 600
    assert cls.code
    assert cls.error_type


def test_a_request_error_keeps_its_message_and_its_param() -> None:
    error = errors.InvalidRequestError(
        "temperature must be from 0 to 2; got 3", param="temperature"
    )
    assert str(error) == error.message == "temperature must be from 0 to 2; got 3"
    assert error.param == "temperature"


def test_a_full_queue_says_when_to_come_back() -> None:
    assert errors.QueueFullError("full", retry_after_s=7).retry_after_s == 7


def test_an_invariant_error_names_its_number() -> None:
    assert str(errors.InvariantError(3, "node 7")) == "invariant 3: node 7"
