"""The litmus tests that everybody knows, to see that the memory here is the one that is meant.

Each: threads as lists of operations; what the reads find in the outcome in question (by thread; None for a
store or a fence), the last values, and whether that can be.
"""

from .memory import (
    ACQ, ACQ_REL, REL, RLX, SC, Program, explore, fence, load, store, swap,
)

X, Y = "x", "y"


def message_passing(write, read, *between):
    return [[store(X, 1, RLX), store(Y, 1, write)], list(between), [load(Y, read), load(X, RLX)]]


def store_buffering(write, read, *between):
    return [[store(X, 1, write), *between, load(Y, read)], [store(Y, 1, write), *between, load(X, read)]]


def independent_reads(write, read):
    return [[store(X, 1, write)], [store(Y, 1, write)], [load(X, read), load(Y, read)], [load(Y, read), load(X, read)]]


def two_by_two(write):
    return [[store(X, 1, write), store(Y, 2, write)], [store(Y, 1, write), store(X, 2, write)]]


IRIW = [[None], [None], [1, 0], [1, 0]]
TESTS = [
    ("SB, SeqCst", store_buffering(SC, SC), [[None, 0], [None, 0]], {}, False),
    ("SB, Release and Acquire", store_buffering(REL, ACQ), [[None, 0], [None, 0]], {}, True),
    ("SB, one load Acquire", [[store(X, 1, SC), load(Y, SC)], [store(Y, 1, SC), load(X, ACQ)]], [[None, 0], [None, 0]], {}, True),
    ("SB, SeqCst fences", store_buffering(RLX, RLX, fence(SC)), [[None, None, 0], [None, None, 0]], {}, False),
    ("SB, AcqRel fences", store_buffering(RLX, RLX, fence(ACQ_REL)), [[None, None, 0], [None, None, 0]], {}, True),
    ("SB, AcqRel swaps", [[swap(X, 1, ACQ_REL), load(Y, ACQ)], [swap(Y, 1, ACQ_REL), load(X, ACQ)]], [[0, 0], [0, 0]], {}, True),
    ("MP, Relaxed", message_passing(RLX, RLX), [[None, None], [], [1, 0]], {}, True),
    ("MP, Release and Acquire", message_passing(REL, ACQ), [[None, None], [], [1, 0]], {}, False),
    ("MP, Release, load Relaxed", message_passing(REL, RLX), [[None, None], [], [1, 0]], {}, True),
    ("MP, fences", [[store(X, 1, RLX), fence(REL), store(Y, 1, RLX)], [load(Y, RLX), fence(ACQ), load(X, RLX)]],
     [[None] * 3, [1, None, 0]], {}, False),
    ("MP through a Relaxed update", message_passing(REL, ACQ, swap(Y, 2, RLX)), [[None, None], [1], [2, 0]], {}, False),
    ("MP through a Relaxed store", message_passing(REL, ACQ, store(Y, 2, RLX)), [[None, None], [None], [2, 0]], {Y: 2}, True),
    ("MP and a later store of the writer", [[store(X, 1, RLX), store(Y, 1, REL), store(Y, 2, RLX)], [load(Y, ACQ), load(X, RLX)]],
     [[None] * 3, [2, 0]], {}, True),
    ("IRIW, SeqCst", independent_reads(SC, SC), IRIW, {}, False),
    ("IRIW, Release and Acquire", independent_reads(REL, ACQ), IRIW, {}, True),
    ("2+2W, SeqCst", two_by_two(SC), [[None, None]] * 2, {X: 1, Y: 1}, False),
    ("2+2W, Release", two_by_two(REL), [[None, None]] * 2, {X: 1, Y: 1}, True),
    ("CoRR", [[store(X, 1, RLX)], [store(X, 2, RLX)], [load(X, RLX), load(X, RLX)], [load(X, RLX), load(X, RLX)]],
     [[None], [None], [1, 2], [2, 1]], {}, False),
    ("CoWR", [[store(X, 1, RLX), load(X, RLX)], [store(X, 2, RLX)]], [[None, 0], [None]], {}, False),
    ("a store before what is there in mo", [[store(X, 1, RLX)], [load(Y, RLX), store(X, 2, RLX)], [store(Y, 1, RLX)]],
     [[None], [1, None], [None]], {X: 1}, True),
    ("two swaps find the same", [[swap(X, 1, RLX)], [swap(X, 2, RLX)]], [[0], [0]], {}, False),
    ("W+RWC, x by Release and Acquire, else SeqCst",
     [[store("z", 1, SC), store(X, 1, REL)], [load(X, ACQ), load(Y, SC)], [store(Y, 1, SC), load("z", SC)]],
     [[None, None], [1, 0], [None, 0]], {}, False),
    ("Z6.U: SeqCst beside Release on one location",
     [[store(X, 1, SC), store(Y, 1, REL)], [swap(Y, 2, SC), load(Y, RLX)], [store(Y, 3, SC), load(X, SC)]],
     [[None, None], [1, 3], [None, 0]], {}, True),
    ("SB, SeqCst swaps", [[swap(X, 1, SC), load(Y, SC)], [swap(Y, 1, SC), load(X, SC)]], [[0, 0], [0, 0]], {}, False),
    ("SB, SeqCst, one behind a Relaxed message of the other",
     [[store(X, 1, SC), load(Y, SC), store("z", 1, RLX)], [load("z", RLX), store(Y, 1, SC), load(X, SC)]],
     [[None, 0, None], [1, None, 0]], {}, False),
    ("W+RWC on one location",
     [[store("z", 1, SC), store(X, 1, REL)], [load(X, ACQ), load(X, SC)], [store(X, 2, SC), load("z", SC)]],
     [[None, None], [1, 1], [None, 0]], {X: 2}, True),
    ("LB (RC11 forbids it: not covered)", [[load(X, RLX), store(Y, 1, RLX)], [load(Y, RLX), store(X, 1, RLX)]],
     [[1, None], [1, None]], {}, False),
]


def thread_of(ops):
    def thread():
        found = ()
        for at in range(len(ops)):
            found += ((yield ops[at]),)
        return found

    return thread


def can_be(threads, answers, last):
    """Whether there is such an execution."""
    wanted = [tuple(mine) for mine in answers]

    def check(final):
        memory = all(final.memory[loc] == value for loc, value in last.items())
        return "it is there" if memory and final.results == wanted else None

    return explore(Program([thread_of(ops) for ops in threads], check))
