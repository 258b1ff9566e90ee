"""The CPU allocator of a machine without koord-scheduler (spec/ledger 3.2): deterministic and pure.

`allocate.allocate` decides for one workload, `take.take` picks the CPUs, `numa` aligns them with NUMA nodes, `pools`
says what is left for shared work. `compat=True` gives koord-scheduler's own answer to the byte, its faults included.
"""
