"""The search against the axioms: on programs at random, both must find the same graphs."""

import random

from . import axioms
from .memory import (
    ACQ, ACQ_REL, REL, RLX, SC, Program, exchange, explore, fence, fetch_or, load, store, swap,
)


def straight(ops):
    def thread():
        for at in range(len(ops)):
            yield ops[at]

    return thread


def random_threads(dice):
    value = 0
    mixed = dice.random() < 0.75  # else most is SeqCst, so that their order decides something
    fences = dice.random() < 0.3
    threads = []
    for size in dice.choice(((2, 2), (3, 2), (2, 2, 1), (3, 3), (2, 2, 2), (1, 2, 2), (2, 2, 1, 1), (4, 2))):
        ops = []
        for _ in range(size):
            value += 1
            loc = dice.choice("xy" if dice.random() < 0.8 else "xyz")
            order = dice.choice((RLX, ACQ, REL, ACQ_REL, SC) if mixed else (SC, SC, SC, RLX, ACQ_REL))
            kind = dice.random()
            if kind < 0.4:
                op = store(loc, value, order)
            elif kind < 0.75:
                op = load(loc, order)
            elif kind < 0.85 and fences:
                op = fence(dice.choice((ACQ, REL, SC, SC)))
            elif kind < 0.9:
                op = swap(loc, value, order)
            elif kind < 0.95:
                op = fetch_or(loc, 32, order)
            else:
                op = exchange(loc, dice.choice((0, value - 1)), value, order, dice.choice((RLX, ACQ, SC)))
            ops.append(op)
        threads.append(ops)
    return threads


def compare(threads):
    """How many graphs there are. Fails if the search finds others, or one of them twice."""
    program = Program([straight(ops) for ops in threads], lambda final: None)
    found = []
    outcome = explore(program, keep=lambda graph: found.append(graph.key()))
    expected = axioms.all_graphs(program, threads)
    if len(found) != outcome.executions or len(set(found)) != len(found) or set(found) != expected:
        lines = [f"{len(expected)} graphs, but {len(found)} found, {len(set(found))} different, of:"]
        lines += [str(ops) for ops in threads]
        raise AssertionError("\n".join(lines))
    return len(found)


def run(programs, seed=1):
    dice = random.Random(seed)
    return sum(compare(random_threads(dice)) for _ in range(programs))
