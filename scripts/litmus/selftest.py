"""The search against the axioms: on the textbook's programs and on variations of them, both must find the same graphs."""

import random

from . import axioms, small
from .memory import (
    ACQ, ACQ_REL, FENCE, READ, REL, RLX, SC, UPDATE, WRITE, Program, exchange, explore, fence, fetch_or, load, store, swap,
)


def straight(ops):
    def thread():
        for at in range(len(ops)):
            yield ops[at]

    return thread


ORDERS = (RLX, ACQ, REL, ACQ_REL, SC, SC)


def random_op(dice, value, with_fences):
    loc, order, kind = dice.choice("xy"), dice.choice(ORDERS), dice.random()
    if kind < 0.35:
        return store(loc, value, order)
    if kind < 0.7:
        return load(loc, order)
    if kind < 0.8 and with_fences:
        return fence(dice.choice((ACQ, REL, SC, SC)))
    if kind < 0.85:
        return swap(loc, value, order)
    if kind < 0.9:
        return fetch_or(loc, 32, order)
    return exchange(loc, dice.choice((0, value - 1)), value, order, dice.choice((RLX, ACQ, SC)))


def random_threads(dice):
    """A test of the textbook with something changed: programs that are all random hardly ever decide anything."""
    threads = [list(thread) for thread in dice.choice(small.TESTS)[1]]
    with_fences, value = dice.random() < 0.3, 7
    for thread in threads:
        for at, op in enumerate(thread):
            if dice.random() < 0.15:
                value += 1
                thread[at] = random_op(dice, value, with_fences)
            elif op.kind != FENCE and dice.random() < 0.4:
                order = dice.choice(ORDERS)
                remade = {READ: order & ~REL, WRITE: order & ~ACQ, UPDATE: order}
                thread[at] = op._replace(order=remade[op.kind])
    if sum(map(len, threads)) < 7 and dice.random() < 0.4:
        thread = dice.choice(threads)
        thread.insert(dice.randrange(len(thread) + 1), random_op(dice, 20, with_fences))
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
    textbook = sum(compare(test[1]) for test in small.TESTS)
    return textbook + sum(compare(random_threads(dice)) for _ in range(programs))
