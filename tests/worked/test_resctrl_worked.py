"""Masks, bandwidths and schemata lines: spec/qos 16.7 rows 56-59, spec/api V-28, V-32, and the field cases.

Longer than other files: one per section of the specification, so that an example is found where its section is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.config import nodeslo
from koordlet.config.errors import PolicyError
from koordlet.decide.cachemask import bandwidth_of, mask_of
from koordlet.decide.resctrl import RESCTRL
from koordlet.kernel.host import CgroupVersion, Host
from koordlet.kernel.resctrl import (
    count_delta,
    format_line,
    last_status,
    parse_count,
    parse_schemata,
    read_monitoring,
    read_resctrl,
    same_line,
    schemata_ids,
)
from koordlet.model.hardware import Hardware
from koordlet.model.pod import Pod, PodSet
from koordlet.model.qos import KubeQos, Qos
from koordlet.model.resctrl import (
    BandwidthLine,
    BandwidthUnit,
    CacheLine,
    Monitoring,
    PodResctrl,
    Range,
    Resctrl,
    ResctrlGroup,
)
from koordlet.model.settings import PodSettings
from koordlet.model.slo import NodeSlo, ResctrlQos
from koordlet.model.view import NodeView, Outcome, Policy
from koordlet.sources.pod_resctrl import RESCTRL as ANNOTATION
from koordlet.sources.pod_resctrl import pod_resctrl
from koordlet.sources.settings import read_settings
from tests.hosts.cases import CASES, case_json, case_text

INTEL = BandwidthLine("MB", (0, 1))
AMD = BandwidthLine("MB", (0, 1), BandwidthUnit.EIGHTH_GBPS, 0, 1, 2048)


def line(full: int, min_bits: int = 1) -> CacheLine:
    return CacheLine("L3", (0, 1), full, min_bits)


@pytest.mark.parametrize(
    ("full", "start", "end", "mask"),
    [
        pytest.param(0x7FF, 0, 30, 0xF, id="56-7ff-0-30"),
        pytest.param(0x7FF, 30, 100, 0x7F0, id="56-7ff-30-100"),
        pytest.param(0xFFFFF, 0, 30, 0x3F, id="56-fffff-0-30"),
        pytest.param(0xFFFFF, 50, 100, 0xFFC00, id="56-fffff-50-100"),
        pytest.param(0xFFF, 20, 80, 0x3F8, id="56-fff-20-80"),
        pytest.param(0xFFFF, 0, 30, 0x1F, id="56-ffff-0-30"),
        pytest.param(0x3FF, 11, 15, 0x4, id="57-3ff-11-15-not-empty"),
    ],
)
def test_mask(full: int, start: int, end: int, mask: int) -> None:
    assert mask_of(line(full), Range(start, end)) == mask


def test_57_a_mask_with_a_hole_is_illegal() -> None:
    with pytest.raises(ValueError, match="not all ones"):
        mask_of(line(0x7FE), Range(0, 30))


def test_case_resctrl_cat_mask_minimum() -> None:
    rows, expected = case_json("resctrl-cat-mask-minimum", "table.json"), case_json("resctrl-cat-mask-minimum")
    found = []
    for row in rows:
        try:
            mask = mask_of(line(int(row["cbm_mask"], 16), row.get("min_cbm_bits", 1)), Range(row["start"], row["end"]))
            found.append(f"{mask:x}")
        except ValueError:
            found.append("error")
    assert found == expected


@given(
    st.integers(1, 32),
    st.integers(0, 99),
    st.integers(1, 100),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(0, 40)),
)
def test_a_mask_is_always_one_the_kernel_takes(ways: int, start: int, width: int, least: int, most: int | None) -> None:
    full, end = (1 << ways) - 1, min(100, start + width)
    mask = mask_of(line(full, least), Range(start, end), most)
    assert 0 < mask <= full
    assert mask // (mask & -mask) & (mask // (mask & -mask) + 1) == 0  # one run of ones
    assert mask.bit_count() >= min(max(1, least), ways)


@pytest.mark.parametrize(
    ("unit", "percent", "value"),
    [
        *(pytest.param(INTEL, p, v, id=f"58-{p}") for p, v in ((95, 100), (91, 100), (90, 90), (45, 50), (5, 10))),
        *(pytest.param(AMD, p, v, id=f"59-{p}") for p, v in ((100, 2048), (90, 144), (50, 80), (33, 52), (1, 1))),
    ],
)
def test_bandwidth(unit: BandwidthLine, percent: int, value: int) -> None:
    assert bandwidth_of(unit, percent) == value


@pytest.mark.parametrize(("vendor", "unit"), [("GenuineIntel", INTEL), ("AuthenticAMD", AMD)])
def test_case_resctrl_mb_percent_values(vendor: str, unit: BandwidthLine) -> None:
    for text, value in case_json("resctrl-mb-percent-values")[vendor].items():
        found = None if text == "null" else bandwidth_of(unit, int(text))
        assert found == value, text


def test_bandwidth_follows_the_machines_own_steps_and_calibration() -> None:
    assert bandwidth_of(replace(INTEL, step=5, minimum=5), 11) == 15
    assert bandwidth_of(replace(INTEL, minimum=20), 5) == 20
    assert bandwidth_of(AMD, 50, amd_units=400) == 200
    assert bandwidth_of(replace(INTEL, unit=BandwidthUnit.MBPS), 50) is None


# lines


def test_case_resctrl_amd_padded_smba() -> None:
    found = parse_schemata(case_text("resctrl-amd-padded-smba", "schemata"))
    expected = case_json("resctrl-amd-padded-smba")
    assert {n: {str(i): int(v) for i, v in found[n].items()} for n in ("MB", "SMBA")} == {
        n: expected[n] for n in ("MB", "SMBA")
    }
    assert {str(i): v for i, v in found["L3"].items()} == expected["L3"]


def recorded(case: str, tmp_path: Path) -> Host:
    """A host whose resctrl is a case's copied files."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs/resctrl").symlink_to(CASES / case)
    if (CASES / case / "mounts").exists():
        (tmp_path / "proc/mounts").write_text(case_text(case, "mounts"))
    return Host(tmp_path, tmp_path, tmp_path / "fs", tmp_path / "proc", tmp_path, tmp_path, tmp_path, CgroupVersion.V2)


def decide(info: Resctrl, be: ResctrlQos, *pods: Pod, **policy: object) -> Outcome[object]:
    asked = Policy(slo=NodeSlo(be_resctrl=be), gates=frozenset({"RdtResctrl", "Resctrl"}))
    view = NodeView(now_s=1.0, pods=PodSet(pods, 1, 1.0), hardware=Hardware(resctrl=info))
    outcome: Outcome[object] = RESCTRL.decide(view, replace(asked, **policy), RESCTRL.initial(), 1.0)  # type: ignore[arg-type]
    return outcome


def group(outcome: Outcome[object], name: str) -> ResctrlGroup:
    (found,) = [e for e in outcome.effects if isinstance(e, ResctrlGroup) and e.target == name]
    return found


def test_case_resctrl_cdp_schemata(tmp_path: Path) -> None:
    info, expected = read_resctrl(recorded("resctrl-cdp-schemata", tmp_path)), case_json("resctrl-cdp-schemata")
    assert info is not None
    assert info.classes == expected["num_closids"]
    made = group(decide(info, ResctrlQos(True, 0, 30, 100)), "BE")
    assert [text.rstrip(";") for text in made.schemata[:2]] == expected["lines"]
    assert list(info.caches[0].ids) == expected["ids"]
    assert all(cache.name.endswith(("CODE", "DATA")) for cache in info.caches) == expected["cdp"]


def test_case_resctrl_noncontiguous_cache_ids() -> None:
    case, expected = "resctrl-noncontiguous-cache-ids", case_json("resctrl-noncontiguous-cache-ids")
    ids = schemata_ids(case_text(case, "schemata"))["L3"]
    assert list(ids) == expected["ids"]
    be = case_json(case, "be.json")
    info = Resctrl((CacheLine("L3", ids, 0xFFFF),), (), 16)
    qos = ResctrlQos(True, be["catRangeStartPercent"], be["catRangeEndPercent"], 100)
    assert group(decide(info, qos), "BE").schemata[0].rstrip(";") == expected["l3_line"]


def test_case_resctrl_mba_mbps_says_nothing_in_percent(tmp_path: Path) -> None:
    case, expected = "resctrl-mba-mbps", case_json("resctrl-mba-mbps")
    assert "mba_MBps" in case_text(case, "mounts")
    unit = BandwidthLine("MB", (0, 1), BandwidthUnit(expected["mb_mode"]), 10, 10, 0xFFFFFFFF)
    info = Resctrl((CacheLine("L3", (0, 1), 0xFFFFF),), (unit,), 8)
    strategy = case_json(case, "strategy.json")
    for percent in strategy["mbaPercent"]:
        qos = ResctrlQos(True, strategy["catRangeStartPercent"], strategy["catRangeEndPercent"], percent)
        assert [text.rstrip(";") for text in group(decide(info, qos), "BE").schemata] == [expected["l3_line"]]


FFF = Resctrl((CacheLine("L3", (0, 1), 0xFFF),), (INTEL,), 16)


def pod(uid: str, wish: PodResctrl | None = None, qos: Qos = Qos.LS) -> Pod:
    return Pod(uid, "ns", uid, f"kubepods/pod{uid}", KubeQos.BURSTABLE, qos=qos, settings=PodSettings(resctrl=wish))


def test_v_28_pod_annotation() -> None:
    text = '{"llc":{"schemata":{"range":[0,30]}},"mb":{"schemata":{"percent":25}}}'
    wish = read_settings({}, {ANNOTATION: text}).resctrl
    made = group(decide(FFF, ResctrlQos(), pod("u", wish)), "koordlet-u")
    assert "".join(f"{row}\n" for row in made.schemata) == "L3:0=f;1=f;\nMB:0=30;1=30;\n"


def test_case_pod_resctrl_annotation() -> None:
    case, expected = "pod-resctrl-annotation", case_json("pod-resctrl-annotation")
    assert int(case_text(case, "cbm_mask"), 16) == FFF.caches[0].full
    wish = read_settings({}, {ANNOTATION: case_text(case, "annotation.json")}).resctrl
    made = group(decide(FFF, ResctrlQos(), pod("u", wish)), "koordlet-u")
    assert list(made.schemata) == expected["lines"]
    found = parse_schemata("\n".join(made.schemata))
    assert {str(n): v for n, v in found["L3"].items()} == expected["L3"]
    assert {str(n): int(v) for n, v in found["MB"].items()} == expected["MB"]


def test_f_13_values_for_single_caches_start_from_the_full_mask() -> None:
    wish = PodResctrl(llc_per_cache=((1, Range(0, 25)),), mb_per_cache=((0, 40),))
    made = group(decide(FFF, ResctrlQos(), pod("u", wish)), "koordlet-u")
    assert made.schemata == ("L3:0=fff;1=7;", "MB:0=40;1=100;")


@pytest.mark.parametrize(
    "text",
    [
        '{"llc":{"schemata":{"range":[50,50]}}}',
        '{"llc":{"schemata":{"range":[0,101]}}}',
        '{"llc":{"schemata":{"range":[0]}}}',
        '{"llc":{"schemataPerCache":[{"cacheID":0,"range":[0,5]},{"cacheID":0,"range":[0,6]}]}}',
        '{"llc":{"schemataPerCache":[{"range":[0,5]}]}}',
        '{"mb":{"schemata":{"percent":"all"}}}',
        '{"mb":{"schemata":{"percent":-1}}}',
        "[]",
        "{",
    ],
)
def test_a_malformed_annotation_is_a_named_fault_and_leaves_the_pod_in_its_class(text: str) -> None:
    settings = read_settings({}, {ANNOTATION: text})
    assert settings.resctrl is None
    assert settings.fault(ANNOTATION)
    lost = replace(pod("u", qos=Qos.BE), settings=settings)
    outcome = decide(FFF, ResctrlQos(True, 0, 30, 100), lost)
    assert [p.uid for p in group(outcome, "BE").pods] == ["u"]


def test_a_cache_that_is_not_here_is_noted() -> None:
    outcome = decide(FFF, ResctrlQos(), pod("u", PodResctrl(llc=Range(0, 50), llc_per_cache=((7, Range(0, 25)),))))
    assert "cache 7" in outcome.notes[0]
    assert group(outcome, "koordlet-u").schemata == ("L3:0=3f;1=3f;",)


def test_a_uid_that_could_leave_the_directory_makes_no_group() -> None:
    outcome = decide(FFF, ResctrlQos(), pod("../x", PodResctrl(llc=Range(0, 50))))
    assert all(e.target in ("", "BE") for e in outcome.effects)
    assert outcome.notes


def test_without_the_gate_an_annotation_is_nothing() -> None:
    asked = pod("u", PodResctrl(llc=Range(0, 50)), Qos.BE)
    outcome = decide(FFF, ResctrlQos(True, 0, 30, 100), asked, gates=frozenset({"RdtResctrl"}))
    assert [e.target for e in outcome.effects] == ["BE"]
    assert group(outcome, "BE").pods[0].uid == "u"


def test_v_18_and_v_32_class_values() -> None:
    off = nodeslo.decode(
        {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": False, "catRangeEndPercent": 20}}}},
        host_app_dir=lambda *_: "",
    )
    assert off.be_resctrl == ResctrlQos(False, 0, 100, 100)
    on = nodeslo.decode(
        {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 20}}}},
        host_app_dir=lambda *_: "",
    )
    assert on.be_resctrl == ResctrlQos(True, 0, 20, 100)
    assert on.ls_resctrl == ResctrlQos(False, 0, 100, 100)


def test_pods_not_known_yet_move_nobody() -> None:
    view = NodeView(now_s=1.0, hardware=Hardware(resctrl=FFF))
    asked = Policy(slo=NodeSlo(be_resctrl=ResctrlQos(True, 0, 30, 50)), gates=frozenset({"RdtResctrl"}))
    assert RESCTRL.decide(view, asked, RESCTRL.initial(), 1.0).effects == ()


def test_the_same_answer_is_the_same_object() -> None:
    asked = Policy(slo=NodeSlo(be_resctrl=ResctrlQos(True, 0, 30, 50)), gates=frozenset({"RdtResctrl"}))
    view = NodeView(now_s=1.0, pods=PodSet((pod("u", qos=Qos.BE),), 1, 1.0), hardware=Hardware(resctrl=FFF))
    first = RESCTRL.decide(view, asked, RESCTRL.initial(), 1.0)
    again = RESCTRL.decide(replace(view, now_s=2.0), asked, first.state, 2.0)
    assert again.effects is first.effects


def test_more_pods_than_monitoring_ids_take_turns() -> None:
    info = replace(FFF, monitoring=Monitoring(6, ("llc_occupancy",)), foreign_rmids=1)
    pods = PodSet(tuple(pod(f"u{n}", qos=Qos.BE) for n in range(7)), 1, 1.0)
    asked = Policy(
        slo=NodeSlo(be_resctrl=ResctrlQos(True, 0, 30, 50)), gates=frozenset({"RdtResctrl"}), resctrl_monitor=True
    )
    state, seen = RESCTRL.initial(), set()
    for minute in range(3):
        view = NodeView(now_s=minute * 60.0, pods=pods, hardware=Hardware(resctrl=info))
        outcome = RESCTRL.decide(view, asked, state, minute * 60.0)
        state = outcome.state
        chosen = {p.uid for e in outcome.effects if isinstance(e, ResctrlGroup) for p in e.pods if p.monitored}
        assert len(chosen) == 3  # of six: the root, BE, and one of somebody else
        seen |= chosen
    assert len(seen) == 7


# kernel texts


@given(st.dictionaries(st.integers(0, 300), st.integers(1, 0xFFFFF), min_size=1))
def test_parse_of_format_is_the_same(values: dict[int, int]) -> None:
    text = format_line("L3", {n: f"{v:x}" for n, v in values.items()})
    assert parse_schemata(f"    {text}\n") == {"L3": {n: f"{v:x}" for n, v in values.items()}}
    assert same_line(text, {"L3": {n: f"{v:08x}" for n, v in values.items()}})


def test_case_resctrl_last_cmd_status(tmp_path: Path) -> None:
    (tmp_path / "info").mkdir()
    for row, expected in zip(
        case_json("resctrl-last-cmd-status", "status.json"), case_json("resctrl-last-cmd-status"), strict=True
    ):
        path = tmp_path / "info/last_cmd_status"
        path.unlink(missing_ok=True)
        if row["op"] != "status_file_missing":
            path.write_text(row["text"])
        wanted = expected.get("error_contains")
        assert (wanted in last_status(tmp_path)) if wanted else last_status(tmp_path) == ""


def test_case_resctrl_mon_data_newline_unavailable(tmp_path: Path) -> None:
    case, expected = CASES / "resctrl-mon-data-newline-unavailable", case_json("resctrl-mon-data-newline-unavailable")
    readings = []
    for name in ("t1", "t2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mon_data").symlink_to(case / name)
        readings.append(read_monitoring(tmp_path / name)[0])
    first, second = readings
    assert {
        str(n): {"llc": r.llc_bytes, "total": r.total_bytes, "local": r.local_bytes} for n, r in first.items()
    } == expected["t1"]
    for cache, rate in expected["rate_total_10s"].items():
        delta = count_delta(first[int(cache)].total_bytes, second[int(cache)].total_bytes)
        assert (None if delta is None else delta / 10) == rate
    for cache, rate in expected["rate_local_10s"].items():
        delta = count_delta(first[int(cache)].local_bytes, second[int(cache)].local_bytes)
        assert (None if delta is None else delta / 10) == rate


@pytest.mark.parametrize(
    ("before", "after", "delta"),
    [(5, 9, 4), (9, 5, None), (None, 5, None), (5, None, None), ((1 << 64) - 10, 6, 16)],
)
def test_counters(before: int | None, after: int | None, delta: int | None) -> None:
    assert count_delta(before, after) == delta


@pytest.mark.parametrize("word", ["Unavailable\n", "Error", "Unassigned", "", "-1", "12x"])
def test_words_are_no_reading(word: str) -> None:
    assert parse_count(word) is None


def test_a_policy_with_an_impossible_range_is_refused() -> None:
    with pytest.raises(PolicyError, match="catRangeStartPercent"):
        nodeslo.decode(
            {"resourceQOSStrategy": {"beClass": {"resctrlQOS": {"enable": True, "catRangeStartPercent": 40}}}},
            host_app_dir=lambda *_: "",
        )


def test_readers_agree_on_the_annotation() -> None:
    assert pod_resctrl({}) == PodResctrl()
