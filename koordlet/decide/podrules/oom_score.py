"""oom_score_adj of a container's processes, by annotation. (spec/hooks 4.8)"""

from __future__ import annotations

from typing import Final

from koordlet.decide.podrules.context import PodContext
from koordlet.decide.podrules.wanted import Wanted
from koordlet.model.pod import Pod
from koordlet.model.podeffects import OomScore
from koordlet.model.podevent import PodEvent
from koordlet.model.why import stages

_OWNER: Final = "podrules"
_PER_CONTAINER: Final = "koordinator.sh/oom-score-adj-spec"


def score_of(pod: Pod, container: str) -> int | None:
    """None: no opinion. A container that the list does not name gets the pod's score; an unreadable list is not
    replaced by the pod's score, for it may have said something else (V-47)."""
    settings = pod.settings
    if settings.fault(_PER_CONTAINER):
        return None
    return dict(settings.oom_score_adj_spec or ()).get(container, settings.oom_score_adj)


def rule(event: PodEvent, context: PodContext, wanted: Wanted) -> None:
    if event.container is None:
        return
    score = score_of(event.pod, event.container.name)
    if score is None:
        return
    wanted.oom_score_adj = score
    wanted.note(f"score={score}")
    cgroup = event.cgroup or event.container.cgroup
    if cgroup:
        wanted.effects.append(OomScore(cgroup, stages(score=score), _OWNER, score))
