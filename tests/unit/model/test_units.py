import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.model.units import mcpu_to_quota_us, mcpu_to_shares, quota_to_mcpu, shares_to_weight, weight_to_shares


@pytest.mark.parametrize(
    ("shares", "weight", "back"),
    [(2, 1, 2), (10, 1, 2), (256, 10, 237), (512, 20, 500), (1024, 39, 998), (2048, 79, 2046), (4096, 157, 4091),
     (102_400, 3906, 102_378), (262_144, 10_000, 262_144)],
)  # fmt: skip
def test_shares_and_weight(shares: int, weight: int, back: int) -> None:  # W-5
    assert shares_to_weight(shares) == weight
    assert weight_to_shares(weight) == back


@pytest.mark.parametrize(("weight", "shares"), [(100, 2597), (500, 13_084)])
def test_weight_to_shares(weight: int, shares: int) -> None:  # W-5
    assert weight_to_shares(weight) == shares


@pytest.mark.parametrize(
    ("mcpu", "shares", "quota_us"),
    [(0, 2, -1), (1, 2, 1000), (5, 5, 1000), (100, 102, 10_000), (250, 256, 25_000), (1500, 1536, 150_000),
     (300_000, 262_144, 30_000_000), (-5, 2, -1)],
)  # fmt: skip
def test_milli_cpu(mcpu: int, shares: int, quota_us: int) -> None:  # W-6
    assert mcpu_to_shares(mcpu) == shares
    assert mcpu_to_quota_us(mcpu) == quota_us


@given(st.integers(1, 10_000))
def test_weights_come_back(weight: int) -> None:
    assert shares_to_weight(weight_to_shares(weight)) in (weight, weight - 1)


@given(st.integers(10, 10**9))
def test_quotas_come_back(mcpu: int) -> None:
    assert quota_to_mcpu(mcpu_to_quota_us(mcpu)) == mcpu
