import pytest

from koordlet.config.errors import UsageError
from koordlet.config.gates import ALPHA, BETA, Gates, parse_gates


def test_nothing_said_is_beta() -> None:
    assert parse_gates("") == Gates(BETA, frozenset())


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("AllAlpha=true,BECPUManager=false", BETA | ALPHA - {"BECPUManager"}),  # V-36
        ("CPUBurst=false,AllBeta=true", BETA - {"CPUBurst"}),  # V-36
        ("AllBeta=true,CPUBurst=false", BETA - {"CPUBurst"}),
        ("AllBeta=false", frozenset()),
        ("AllBeta=false,CPUBurst=true", {"CPUBurst"}),
        (" PSICollector = true , ", BETA | {"PSICollector"}),
        ("CPUBurst=false,CPUBurst=true", BETA),
    ],
)
def test_stages_and_names(text: str, enabled: set[str]) -> None:
    assert parse_gates(text).enabled == enabled


def test_be_cpu_manager_of_a_stage_does_not_switch_suppress_off() -> None:  # F-06
    by_stage = parse_gates("AllAlpha=true")
    assert "BECPUManager" in by_stage.enabled
    assert "BECPUManager" not in by_stage.effective
    assert len(by_stage.warnings) == 1
    named = parse_gates("AllAlpha=true,BECPUManager=true")
    assert "BECPUManager" in named.effective
    assert named.warnings == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [("NoSuch=true", "unknown gate"), ("CPUBrst=true", "did you mean CPUBurst"), ("CPUBurst=yes", "true or false"),
     ("CPUBurst", "true or false"), ("=true", "unknown gate")],
)  # fmt: skip
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_gates(text)
