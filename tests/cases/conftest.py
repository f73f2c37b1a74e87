"""The cases talk to the same servers as the server's own tests."""

from tests.server.conftest import (  # noqa: F401  fixtures
    client,
    engine_config,
    model_folder,
    serve_shared,
    shared_engine,
)
