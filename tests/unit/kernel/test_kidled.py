"""kidled's statistics, and the switch that is turned on for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordlet.decide.coldpages import COLD_PAGES
from koordlet.kernel.errors import KernelFileError
from koordlet.kernel.host import CgroupVersion
from koordlet.kernel.kidled import is_there, parse_cold_bytes
from koordlet.kernel.probe import probe
from koordlet.model.knob import Knob
from koordlet.model.view import NodeView, Policy
from tests.hosts.tree import HostTree

W15 = """\
# version: 1.0
# buckets: 1,2,5,15,30,60,120,240
  csei 9 9 9 9 9 9 9 9
  cfei 1 1 1 1 1 8192 4096 12288
  dfei 1 1 1 1 1 4096 0 0
  cfui 0 0 0 0 0 0 0 0
  dfui 0 0 0 0 0 0 0 4096
  cfea 9 9 9 9 9 9 9 9
  slab 9 9 9 9 9 9 9 9
"""


def test_w15_cold_bytes() -> None:
    assert parse_cold_bytes(W15) == 32768


@pytest.mark.parametrize(
    "text", ["", W15.replace("  dfui", "  dfux"), W15.replace("8192", "-1"), W15.replace(" 12288", "")],
    ids=["empty", "no-row", "negative", "short"],
)  # fmt: skip
def test_a_part_is_not_taken_for_the_whole(text: str) -> None:
    with pytest.raises(KernelFileError, match="idle_page_stats"):
        parse_cold_bytes(text)


def kernel_with_kidled(root: Path) -> HostTree:
    tree = HostTree(root, CgroupVersion.V1)
    tree.put("sys/kernel/mm/kidled", {"scan_period_in_seconds": "0\n", "use_hierarchy": "0\n"})
    return tree


def test_counting_is_switched_on_by_the_gate_where_the_kernel_has_it(tmp_path: Path) -> None:
    tree = kernel_with_kidled(tmp_path / "anolis")
    assert is_there(tree.host)
    on, off = Policy(gates=frozenset({"ColdPageCollector"})), Policy()
    view = NodeView(now_s=1.0, support=probe(tree.host, None))
    wanted = {decision.knob: decision.value for decision in COLD_PAGES.decide(view, on, None, 1.0).decisions}
    assert wanted == {Knob.KIDLED_SCAN_PERIOD: 5, Knob.KIDLED_HIERARCHY: 1}
    assert COLD_PAGES.decide(view, off, None, 1.0).decisions == ()
    mainline = HostTree(tmp_path / "mainline", CgroupVersion.V1)
    assert not is_there(mainline.host)
    view = NodeView(now_s=1.0, support=probe(mainline.host, None))
    assert COLD_PAGES.decide(view, on, None, 1.0).decisions == ()
