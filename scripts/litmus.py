#!/usr/bin/env python3
"""Checks the crate's lock-free protocols on weak memory: every execution that RC11 allows.

    scripts/litmus.py               all of it, some 16 s of one core
    scripts/litmus.py ready-list    those whose name has that in it
    scripts/litmus.py --long        larger sizes too, a minute and a half
    scripts/litmus.py --show end    prints an execution for each that is broken

loom runs the real code, but puts every store at the end of its location's modification order. Arm does not, and the
standard does not say that it has to. Here the protocols are written down once more, a few lines
each (`litmus/protocols.py`), and what is tried is all that RC11 allows: `litmus/memory.py` says what that
covers and what not. Each is to hold as the crate has it, and to break when an order in it is weakened; where a
weaker one would do, that is said too. The run fails when any verdict is not the expected one.
"""

import sys
import time
from functools import partial

sys.dont_write_bytecode = True  # it leaves nothing in the tree

from litmus import selftest, small
from litmus.memory import ACQ, ACQ_REL, NAMES, REL, RLX, SC, explore
from litmus.protocols import (
    close, doorbell, end, family, last_run, ready_list, ready_sleep, signals,
)

HOLDS, BREAKS = "holds", "breaks"


def sizes(protocol, *arguments):
    """The same protocol in several sizes. It holds if each does."""
    return lambda orders: [partial(protocol, orders, **each) for each in arguments]


SIGNALS = sizes(signals, *({"pushes": pushes, "looks": looks} for pushes in ((1, 1), (2, 1)) for looks in (1, 2)))
READY = lambda orders: [
    partial(ready_list, orders, (1, 1), 2),
    partial(ready_list, orders, (2, 1), 2),
    partial(ready_list, orders, (2, 2), 2),
    partial(ready_list, orders, (1, 1, 1), 1),
    partial(ready_sleep, orders, (1,)),
    partial(ready_sleep, orders, (2,)),
    partial(ready_sleep, orders, (1, 1)),
    partial(ready_sleep, orders, (1, 1), True),
    partial(ready_sleep, orders, (2, 1), most=1),
]
READY_LONG = lambda orders: [
    partial(ready_list, orders, (2, 2), 3),
    partial(ready_list, orders, (1, 1, 1), 2),
    partial(ready_sleep, orders, (2, 1)),
]
DOORBELL = sizes(doorbell, *({"deadlines": d} for d in ((3,), (3, 5), (3, 3), (5, 3, 4))))
CLOSE = sizes(close, *({"pushes": pushes} for pushes in ((2, 1), (2, 2), (3,))))
FAMILY = sizes(family, {"cloners": 1}, {"cloners": 2})
FORGETS = sizes(family, {"cloners": 1, "forgets": True}, {"cloners": 2, "forgets": True})
END = sizes(end, {"lookers": 2})
REFILL = sizes(end, {"lookers": 2, "refills": True})
LAST_RUN = sizes(last_run, {}, {"has_thread": True})
LAST_RUN_CANCELLED = sizes(last_run, {"is_cancelled": True}, {"is_cancelled": True, "has_thread": True})

# What is weakened, and what comes of it. The first of each is as it is in the crate.
PROTOCOLS = [
    ("signals-old", SIGNALS, [
        ({}, BREAKS),
        ({"word or": REL, "word swap": ACQ}, HOLDS),
        ({"word or": REL}, BREAKS),
        ({"word swap": ACQ}, BREAKS),
    ]),
    ("ready-list", READY, [
        ({}, HOLDS),
        ({"published swap": ACQ_REL}, BREAKS),
        ({"listed load": ACQ}, BREAKS),
        ({"listed load": RLX}, BREAKS),
        ({"listed clear": REL}, BREAKS),
        ({"published load": ACQ}, BREAKS),
        ({"head exchange": ACQ_REL}, BREAKS),
        ({"head exchange": REL}, BREAKS),
        ({"head exchange": ACQ}, BREAKS),
        ({"head exchange": RLX}, BREAKS),
        ({"head swap": RLX}, BREAKS),
        ({"head last look": ACQ}, BREAKS),
        ({"bell load": ACQ}, BREAKS),
        ({"arm": REL}, BREAKS),
        ({"next is late": True}, BREAKS),
        ({"head load": ACQ}, HOLDS),
        ({"head load": RLX}, HOLDS),
    ]),
    ("doorbell", DOORBELL, [
        ({}, HOLDS),
        ({"publish": ACQ_REL}, BREAKS),
        ({"look": ACQ}, BREAKS),
        ({"arm": REL}, BREAKS),
        ({"bell load": ACQ}, BREAKS),
        ({"drops tokens": True}, BREAKS),
    ]),
    ("close", CLOSE, [
        ({}, HOLDS),
        ({"swap": ACQ_REL, "look": ACQ}, HOLDS),
        ({"swap": REL, "look": ACQ}, HOLDS),
        ({"swap": RLX}, BREAKS),
        ({"close": RLX}, BREAKS),
        ({"puts back": False}, BREAKS),
        ({"closes in two steps": True}, BREAKS),
    ]),
    ("family", FAMILY, [
        ({}, HOLDS),
        ({"word exchange": ACQ_REL}, BREAKS),
        ({"word look": ACQ}, BREAKS),
        ({"shared load": ACQ}, BREAKS),
        ({"shared store": REL}, BREAKS),
    ]),
    # A cancel that wins keeps the slot until it has noted that; one that dooms a series has none to keep (HANDLE-2).
    ("family-won", FORGETS, [
        ({}, HOLDS),
        ({"keeps slot": False}, BREAKS),
        ({"looks again": False}, BREAKS),
        ({"fill": RLX}, BREAKS),
        ({"birth store": RLX}, BREAKS),
        ({"birth load": RLX}, BREAKS),
        ({"cancelled load": SC, "word look": ACQ}, BREAKS),
    ]),
    ("family-doomed", FORGETS, [
        ({"keeps slot": False, "cancelled store": SC, "cancelled load": SC}, HOLDS),
        ({"keeps slot": False, "cancelled store": SC}, BREAKS),
        ({"keeps slot": False, "cancelled load": SC}, BREAKS),
    ]),
    ("end", END, [
        ({}, HOLDS),
        ({"end": RLX}, BREAKS),
        ({"look": RLX}, BREAKS),
    ]),
    ("end-slot-is-filled-again", REFILL, [
        ({}, HOLDS),
        ({"fill": RLX}, BREAKS),
        ({"birth store": RLX}, BREAKS),
        ({"birth load": RLX}, BREAKS),
        ({"end": RLX}, BREAKS),
    ]),
    ("last-run", LAST_RUN, [
        ({}, HOLDS),
        ({"engine look": ACQ}, BREAKS),
        ({"closing load": ACQ}, BREAKS),
        ({"closing store": REL}, BREAKS),
    ]),
    ("last-run-cancelled", LAST_RUN_CANCELLED, [
        ({}, HOLDS),
        ({"last look": RLX}, BREAKS),
        ({"closing load": ACQ}, BREAKS),
    ]),
]
SIGNALS_AS_LANDED = {"word or": RLX, "word swap": RLX}


def told(orders):
    if not orders:
        return "as written"
    return ", ".join(
        name if how is True else f"not: {name}" if how is False else f"{name} {NAMES[how]}"
        for name, how in orders.items()
    )


def verdict(programs):
    """Stops at the first that breaks."""
    executions = 0
    for make in programs:
        outcome = explore(make())
        executions += outcome.executions
        if outcome.complaint is not None:
            return BREAKS, executions, outcome
    return HOLDS, executions, None


def main(arguments):
    names = [argument for argument in arguments if not argument.startswith("--")]
    shows, is_long = "--show" in arguments, "--long" in arguments
    began, wrong, ran = time.monotonic(), 0, 0

    def is_asked(name):
        return not names or any(part in name for part in names)

    def row(name, what, result, expected, executions, note):
        nonlocal wrong, ran
        ran += 1
        wrong += result != expected
        mark = "" if result == expected else f"  EXPECTED: {expected}"
        print(f"{name:25} {what:50} {result:9} {executions:8}  {note}{mark}", flush=True)

    if is_asked("selftest"):
        graphs = selftest.run(6000 if is_long else 500)
        row("selftest", "the search against the axioms, at random", "same", "same", graphs, "")
    if is_asked("small"):
        for name, threads, answers, last, is_allowed in small.TESTS:
            outcome = small.can_be(threads, answers, last)
            result = "can be" if outcome.complaint else "cannot be"
            row("small", name, result, "can be" if is_allowed else "cannot be", outcome.executions, "")
    for name, protocol, variants in PROTOCOLS:
        if not is_asked(name):
            continue
        if name == "ready-list" and is_long:
            result, executions, outcome = verdict(READY_LONG({}))
            row(name, "as written, larger", result, HOLDS, executions, outcome.complaint if outcome else "")
        for orders, expected in variants:
            full = {**SIGNALS_AS_LANDED, **orders} if name == "signals-old" else orders
            result, executions, outcome = verdict(protocol(full))
            row(name, told(orders), result, expected, executions, outcome.complaint if outcome else "")
            if outcome and shows:
                print(*(f"    {line}" for line in outcome.trace), sep="\n")
    print(f"{ran} verdicts, {wrong} wrong, {time.monotonic() - began:.1f} s")
    if ran == 0:
        print("nothing has such a name")
    return 1 if wrong or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
