"""RC11 as it is in the paper: a graph, its relations, and what they must not do.

It is slow, and shares nothing with the search in `memory.py` but the programs. So it judges it: `all_graphs` tries
every reads-from and every modification order of a small straight program, keeps what the axioms allow, and
the search must find the same graphs, each once.

A read-modify-write is one event here. Relations are lists of bit sets: row i has the bits of all j with
i -> j.
"""

import functools
import itertools
from collections import namedtuple

from .memory import ACQ, FENCE, READ, REL, SC_BIT, UPDATE, WRITE, steps_of, updated

# `thread` is -1 for what is in memory at first. `source`: the event that it reads from.
Event = namedtuple("Event", "thread loc order reads writes source")


def union(*relations):
    return [functools.reduce(int.__or__, rows) for rows in zip(*relations)]


def bits(row):
    while row:
        low = row & -row
        yield low.bit_length() - 1
        row ^= low


def then(first, second):
    """first ; second"""
    result = []
    for row in first:
        reached = 0
        for middle in bits(row):
            reached |= second[middle]
        result.append(reached)
    return result


def maybe(relation):
    """relation?"""
    return [row | 1 << index for index, row in enumerate(relation)]


def closure(relation):
    """relation+"""
    rows = list(relation)
    for middle in range(len(rows)):
        reached = rows[middle]
        for index, row in enumerate(rows):
            if row >> middle & 1:
                rows[index] = row | reached
                if index == middle:
                    reached = rows[middle]
    return rows


def inverse(relation):
    rows = [0] * len(relation)
    for index, row in enumerate(relation):
        for other in bits(row):
            rows[other] |= 1 << index
    return rows


def is_acyclic(relation):
    return all(not row >> index & 1 for index, row in enumerate(closure(relation)))


class Relations:
    """`events` in program order within each thread; `mo`: each location's writes in order."""

    def __init__(self, events, mo):
        self.events = events
        size = range(len(events))

        def where(test):
            return sum(1 << i for i in size if test(events[i]))

        def pairs(test):
            return [sum(1 << j for j in size if i != j and test(i, j)) for i in size]

        self.none = [0] * len(events)
        self.fences = where(lambda e: e.loc is None)
        self.in_order = where(lambda e: e.order & SC_BIT)
        starts = where(lambda e: e.thread < 0)

        def comes_before(i, j):
            if events[i].thread < 0:
                return events[j].thread >= 0
            return events[i].thread == events[j].thread and i < j

        self.sb = pairs(comes_before)
        self.same = pairs(lambda i, j: events[i].loc is not None and events[i].loc == events[j].loc)
        self.mo = [0] * len(events)
        for order in mo.values():
            for a, b in itertools.combinations(order, 2):
                self.mo[a] |= 1 << b
        self.rf = [0] * len(events)
        for index, event in enumerate(events):
            if event.source is not None:
                self.rf[event.source] |= 1 << index
        back = then(inverse(self.rf), self.mo)
        self.rb = [row & ~(1 << index) for index, row in enumerate(back)]
        self.eco = closure(union(self.rf, self.mo, self.rb))
        self.starts = starts
        self.hb = closure(union(self.sb, self.sw()))

    def within(self, which):
        return [1 << i if which >> i & 1 else 0 for i in range(len(self.events))]

    def sw(self):
        """C++20's: a later plain store does not go on with a release sequence."""
        events = self.events

        def only(test):
            return self.within(sum(1 << i for i, e in enumerate(events) if test(e)))

        fences = self.within(self.fences)
        updates = only(lambda e: e.reads and e.writes)
        chain = maybe(closure(then(self.rf, updates)))
        from_fence = maybe(then(fences, self.sb))
        to_fence = maybe(then(self.sb, fences))
        releases = only(lambda e: e.order & REL and e.thread >= 0)
        acquires = only(lambda e: e.order & ACQ)
        step = then(only(lambda e: e.writes and e.thread >= 0), then(chain, self.rf))
        return then(releases, then(from_fence, then(step, then(to_fence, acquires))))

    def psc(self):
        fences = self.within(self.fences & self.in_order)
        accesses = self.within(self.in_order & ~self.fences)
        hb, sb = self.hb, [0 if self.starts >> i & 1 else row for i, row in enumerate(self.sb)]
        elsewhere = [row & ~same for row, same in zip(sb, self.same)]
        scb = union(
            sb,
            then(elsewhere, then(hb, elsewhere)),
            [row & same for row, same in zip(hb, self.same)],
            self.mo,
            self.rb,
        )
        left = union(accesses, then(fences, maybe(hb)))
        right = union(accesses, then(maybe(hb), fences))
        base = then(left, then(scb, right))
        long = union(hb, then(hb, then(self.eco, hb)))
        return union(base, then(fences, then(long, fences)))

    def is_in_order(self):
        return is_acyclic(self.psc())

    def is_consistent(self):
        coherent = then(self.hb, maybe(self.eco))
        # `eco` by itself: an update that reads from what comes after its own write.
        for index, (row, extended) in enumerate(zip(coherent, self.eco)):
            if (row | extended) >> index & 1:
                return False
        between = then(self.rb, self.mo)
        for index, event in enumerate(self.events):
            if event.reads and event.writes and between[index] >> index & 1:
                return False
        return is_acyclic(union(self.sb, self.rf)) and self.is_in_order()


class Graph:
    """A complete execution that the search has built."""

    def __init__(self, program, trace):
        steps = steps_of(trace)
        self.events = [Event(-1, loc, 0, False, True, None) for loc in program.locs]
        writers = {(loc, 0.0): index for index, loc in enumerate(program.locs)}
        where = {loc: [(0.0, index)] for index, loc in enumerate(program.locs)}
        for number, op, how, read_at, wrote_at, answer, value in steps:
            source = None if read_at is None else writers[op.loc, read_at]
            if wrote_at is not None:
                writers[op.loc, wrote_at] = len(self.events)
                where[op.loc].append((wrote_at, len(self.events)))
            reads, writes = read_at is not None, wrote_at is not None
            self.events.append(Event(number, op.loc, how, reads, writes, source))
        self.mo = {loc: [index for _, index in sorted(order)] for loc, order in where.items()}
        self.relations = Relations(self.events, self.mo)

    def is_in_order(self):
        return self.relations.is_in_order()

    def key(self):
        """The same for each order of building."""
        names, counts = {}, {}
        for index, event in enumerate(self.events):
            place = event.loc if event.thread < 0 else counts.setdefault(event.thread, 0)
            names[index] = (event.thread, place)
            if event.thread >= 0:
                counts[event.thread] += 1
        return key_of(self.events, self.mo, names)


def key_of(events, mo, names):
    rf = frozenset(
        (names[index], names[event.source])
        for index, event in enumerate(events)
        if event.source is not None
    )
    return rf, frozenset((loc, tuple(names[index] for index in order)) for loc, order in mo.items())


def all_graphs(program, threads):
    """The keys of all graphs that the axioms allow. `threads`: the program's, as lists of operations."""
    locs = program.locs
    ops = [(-1, loc, None) for loc in locs]
    ops += [(number, place, op) for number, thread in enumerate(threads) for place, op in enumerate(thread)]
    names = {index: (number, place) for index, (number, place, _) in enumerate(ops)}
    readers = [i for i, (_, _, op) in enumerate(ops) if op is not None and op.kind in (READ, UPDATE)]

    def sources(reader):
        loc = ops[reader][2].loc
        for index, (_, place, op) in enumerate(ops):
            if op is None and place == loc:
                yield index
            elif op is not None and index != reader and op.loc == loc and op.kind in (WRITE, UPDATE):
                yield index

    found = set()
    for choice in itertools.product(*(list(sources(reader)) for reader in readers)):
        events = valued(ops, dict(zip(readers, choice)), program.initial)
        if events is None:
            continue
        writes = {loc: [] for loc in locs}
        for index, event in enumerate(events):
            if event.writes and event.thread >= 0:
                writes[event.loc].append(index)
        for orders in itertools.product(*(itertools.permutations(writes[loc]) for loc in locs)):
            mo = {loc: [index, *order] for index, (loc, order) in enumerate(zip(locs, orders))}
            if Relations(events, mo).is_consistent():
                found.add(key_of(events, mo, names))
    return found


def valued(ops, source, initial):
    """The events with their values; None if there are none, because values depend on themselves."""
    values, events = {}, [None] * len(ops)
    todo = set(range(len(ops)))
    while todo:
        before = len(todo)
        for index in sorted(todo):
            number, place, op = ops[index]
            if op is None:
                events[index] = Event(-1, place, 0, False, True, None)
                values[index] = initial.get(place, 0)
            elif op.kind == FENCE:
                events[index] = Event(number, None, op.order, False, False, None)
            elif op.kind == WRITE:
                events[index] = Event(number, op.loc, op.order, False, True, None)
                values[index] = op.arg
            elif source[index] in todo:
                continue
            elif source[index] not in values:
                return None  # it reads from an exchange that has failed
            else:
                seen = values[source[index]]
                new = updated(op.arg, seen) if op.kind == UPDATE else None
                fails = op.kind == UPDATE and new is None
                order = op.fail if fails else op.order
                events[index] = Event(number, op.loc, order, True, new is not None, source[index])
                if new is not None:
                    values[index] = new
            todo.discard(index)
        if len(todo) == before:
            return None
    return events
