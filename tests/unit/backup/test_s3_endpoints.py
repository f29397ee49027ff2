"""Endpoints that the library for S3 would panic at are refused first."""

from __future__ import annotations

import pytest

pytest.importorskip("obstore")

from proto.backup import BackupFailed
from services.backup.s3 import S3


@pytest.mark.parametrize("endpoint", ["nonsense", "ftp://a", "http://", "https://a:99999", "a:1"])
def test_an_endpoint_that_is_no_address_is_named(endpoint: str) -> None:
    with pytest.raises(BackupFailed, match="endpoint"):
        S3("s3://bucket/x", "bucket", "x", endpoint)
