"""info/last_cmd_status: why the last command failed, in the kernel's words.

It is reset by mkdir, rename and each write to a group's files, and reading does not clear it
(Documentation/filesystems/resctrl.rst, end of "Info directory"; rdt_last_cmd_status_show()). The texts are those of
fs/resctrl/*.c.
"""

from __future__ import annotations

STATUS_BYTES = 511
OLD_WORDING = (  # v4.19: arch/x86/kernel/cpu/intel_rdt_ctrlmondata.c and intel_rdt_rdtgroup.c
    ("The mask ", "mask "),
    ("Need at least {} bits in the mask", "Need at least {} bits in mask"),
    ("Non-hex character in the mask", "non-hex character in mask"),
    ("Unknown or unsupported resource name", "unknown/unsupported resource name"),
    ("Unknown or unsupported mode", "unknown/unsupported mode"),
    ("Invalid MB value", "Non-decimal digit in MB value"),
    *((new, new.lower()) for new in ("Mask out", "Duplicate domain", "Schemata overlaps", "Overlaps", "Out of")),
)


class Status:
    """info/last_cmd_status."""

    def __init__(self, old_wording: bool) -> None:
        self.old_wording = old_wording
        self.text = ""

    def clear(self) -> None:
        self.text = ""

    def say(self, text: str) -> None:
        if self.old_wording:
            text = text.replace(" bits in the mask", " bits in mask")
            for new, old in OLD_WORDING:
                text = old + text[len(new) :] if text.startswith(new) else text
        self.text = (self.text + text)[:STATUS_BYTES]

    def fail(self, code: int, text: str) -> OSError:
        self.say(text)
        return OSError(code, text.strip())

    def show(self) -> str:
        return self.text or "ok\n"
