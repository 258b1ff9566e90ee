"""Takes back everything that was done to resctrl: groups made are removed, groups found get their schemata and tasks
back, others' groups are not looked at. Used on a clean stop, at the start after a crash, and by `koordlet undo`."""

from __future__ import annotations

from koordlet.act.resctrl_state import Adopted, Record, State
from koordlet.act.resctrl_tree import Refused, ResctrlTree
from koordlet.kernel.resctrl import FIXED_DIRS, format_line, parse_schemata
from koordlet.model.resctrl import POD_PREFIX


def undo_resctrl(tree: ResctrlTree, state: State) -> tuple[int, list[str]]:
    """(groups put right, what failed). What fails stays recorded, so it can be tried again."""
    if not tree.mounted():
        state.record = Record()
        state.save()
        return 0, []
    done, errors = 0, []
    try:
        names = tree.groups()
    except Refused as refused:
        return 0, [str(refused)]
    for name in names:
        if name.startswith(POD_PREFIX) or name in state.record.made:
            try:
                tree.remove(name)
                done += 1
            except Refused as refused:
                errors.append(str(refused))
                continue
        if name in state.record.made:
            state.record.made.remove(name)
    state.record.made = [name for name in state.record.made if name in names]
    for name, before in list(state.record.adopted.items()):
        if name in names:
            failed = give_back(tree, name, before)
            errors += failed
            done += not failed
            if failed:
                continue
        del state.record.adopted[name]
    for name in ["", *(n for n in names if n in state.record.adopted)]:
        errors += remove_monitors(tree, name)
    state.record.monitored = state.record.monitored and bool(errors)
    if state.record.mounted and not errors:
        errors += _unmount(tree, state)
    state.save()
    return done, errors


def give_back(tree: ResctrlTree, name: str, before: Adopted) -> list[str]:
    """A group that was there before us: as it was then."""
    errors = remove_monitors(tree, name)
    try:
        for line, cells in parse_schemata(before.schemata).items():
            if tree.schemata(name).get(line) != cells:
                tree.write(name, format_line(line, cells))
        now = tree.tasks(name)
        strangers, missing = sorted(now - set(before.tasks)), sorted(set(before.tasks) - now)
        for place, tids in (("", strangers), (name, missing)):
            _, refused = tree.move(place, tids)
            errors += [refused] if refused else []
    except Refused as refusal:
        if not refusal.gone:
            errors.append(str(refusal))
    return errors


def remove_monitors(tree: ResctrlTree, name: str) -> list[str]:
    errors = []
    for inner in tree.monitors(name):
        try:
            tree.remove(f"{name}/mon_groups/{inner}".lstrip("/"))
        except Refused as refused:
            errors.append(str(refused))
    return errors


def _unmount(tree: ResctrlTree, state: State) -> list[str]:
    """Only if nobody else has made a group since."""
    try:
        if not [name for name in tree.groups() if name not in FIXED_DIRS]:
            tree.unmount()
        state.record.mounted = False
    except Refused as refused:
        return [str(refused)]
    return []
