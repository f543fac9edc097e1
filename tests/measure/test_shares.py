"""Shares and their intervals."""
import pytest

from measure.shares import wilson


def test_wilson_interval():
    """Newcombe 1998, table I: 81/263 and 15/148; and the ends."""
    for right, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        assert wilson(right, n) == pytest.approx((low, high), abs=1e-4)
    assert wilson(0, 0) == (0, 1) and wilson(20, 20)[1] == 1
