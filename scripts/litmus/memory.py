"""Every execution of a small program that RC11 allows, each one once.

The memory. Each location has a history of messages in modification order (mo). A store may put its
message at ANY place behind what its thread knows of that location, not only at the end; a
read-modify-write puts it right behind the one that it reads, and nothing ever comes between the two.
A message of a release carries what its thread knew, its released view; an acquire takes that over; a
read-modify-write passes on what the message carried that it read (the release sequence). What a
thread knows (its view) is how far it has come in each history.

SeqCst. There is no global clock of SeqCst accesses here: the order in which they are executed would
be too strict where SeqCst and weaker accesses of one location mix. Instead the partial order `psc` of RC11 is
kept, and a step that would close a cycle in it is not taken. Its edges between SeqCst accesses are
those of the paper: program order; program order to another location, happens-before, and again
program order to another location; happens-before on one location; modification order;
reads-before. Programs with fences are checked when they are complete, by the paper's axioms (`axioms.py`).

The search. An execution is a graph; what counts is who reads from whom, and the order of each history, not
in which order it was built. So
  - a store or a fence is executed as soon as its thread comes to it: whoever does not want to see it
    need not, and whoever wants to be before it in mo can still be;
  - a read takes each message that is there, each in a branch of its own, or, in one more branch, refuses all of
    them for good, and waits for one that is still to come.
So each graph is built once, and no interleaving is looked at twice. The messages that are refused are what
other checkers keep in a table of states that they have seen.

What it covers: RC11 (Lahav, Vafeiadis, Kang, Hur, Dreyer: "Repairing sequential consistency in C/C++11",
2017), of which C++20, and with it Rust, has taken the rules for SeqCst. Release sequences are as in C++20: a later plain
store of the same thread does not go on with one. In this it allows more than the paper.
What it does not cover: load buffering (a read that sees a store which depends on nothing and comes
later than it in program order, and around in a circle); RC11 forbids it, Arm and C++ do not. Non-atomic
data, and so undefined behaviour by a race. Memory that is freed. Compare-exchanges that fail for no reason.
Programs of any length: what is proved is proved for as many threads and steps as the program has.
"""

from collections import namedtuple

# Orders, as sets of properties.
RLX, ACQ, REL, ACQ_REL, SC = 0, 1, 2, 3, 7
SC_BIT = 4
NAMES = {RLX: "Relaxed", ACQ: "Acquire", REL: "Release", ACQ_REL: "AcqRel", SC: "SeqCst"}


def name_of(order):
    return NAMES[SC if order & SC_BIT else order]


# What a thread asks for. `want`: it waits until it reads one of these.
Op = namedtuple("Op", "kind loc order arg fail want", defaults=(None, None, None, None))
READ, WRITE, UPDATE, FENCE = "load", "store", "update", "fence"


def load(loc, order):
    return Op(READ, loc, order & ~REL)


def await_load(loc, order, *want):
    return Op(READ, loc, order & ~REL, want=want)


def store(loc, value, order):
    return Op(WRITE, loc, order & ~ACQ, value)


def swap(loc, value, order):
    return Op(UPDATE, loc, order, ("swap", value))


def fetch_or(loc, bits, order):
    return Op(UPDATE, loc, order, ("or", bits))


def exchange(loc, old, new, order, fail=RLX):
    """compare_exchange; its result is the value that it has read."""
    return Op(UPDATE, loc, order, ("exchange", old, new), fail)


def await_exchange(loc, old, new, order):
    return Op(UPDATE, loc, order, ("exchange", old, new), RLX, (old,))


def fence(order):
    return Op(FENCE, None, order)


def updated(arg, value):
    """What a read-modify-write makes of a value; None if it leaves it."""
    if arg[0] == "swap":
        return arg[1]
    if arg[0] == "or":
        return value | arg[1]
    return arg[2] if value == arg[1] else None


# ----- programs ---------------------------------------------------------------------------------


class Node:
    """Where a thread may stand: what it asks for, and where each answer leads."""

    __slots__ = ("op", "loc", "next", "result", "path", "writes", "want")


def key_of(generator):
    """Where a generator stands, and its variables. (Those of a `for` over a range tell its state.)"""
    parts = []
    while generator is not None:
        frame = generator.gi_frame
        code = frame.f_code
        values = frame.f_locals
        names = [name for name in code.co_varnames if name in values]
        # What a program was made with does not change.
        names = [n for n in names if not isinstance(values[n], dict) and not callable(values[n])]
        parts.append((code.co_name, frame.f_lasti, tuple((n, values[n]) for n in names)))
        generator = generator.gi_yieldfrom
    return tuple(parts)


class Thread:
    """A generator function as a finite graph of `Node`s, for all answers that its reads may get."""

    def __init__(self, start):
        self.start, self.nodes, self.first = start, {}, None

    def node(self, path):
        generator = self.start()
        node = Node()
        node.path, node.next, node.op, node.result, node.writes = path, {}, None, None, 0
        try:
            op = next(generator)
            for answer in path:
                op = generator.send(answer)
            key = key_of(generator)
            node.op = op
        except StopIteration as stop:
            node.result = stop.value
            key = ("end", stop.value)
        return self.nodes.setdefault(key, node)


class Program:
    """Threads (generator functions), and what is in memory at first; what is not named is 0.

    `check(final)` is asked at the end of each execution, and returns a complaint, or None. `final` has
    `memory` (the last value of each location), `results` of the threads, and `asleep`: those that wait for ever.
    """

    def __init__(self, threads, check, **memory):
        self.threads = [Thread(start) for start in threads]
        self.check, self.initial = check, memory
        self.locs, self.has_fence = [], False
        self.compile()

    def loc(self, name):
        if name not in self.locs:
            self.locs.append(name)
            self.domain.append({self.initial.get(name, 0)})
        return self.locs.index(name)

    def compile(self):
        """Finds all nodes; a read may see whatever anybody may write there."""
        self.domain = []
        for thread in self.threads:
            thread.first = thread.node(())
        size = None
        while size != (size := self.size()):
            for thread in self.threads:
                todo = list(thread.nodes.values())
                while todo:
                    node = todo.pop()
                    for answer in self.answers(node):
                        if answer not in node.next:
                            before = len(thread.nodes)
                            node.next[answer] = thread.node(node.path + (answer,))
                            if len(thread.nodes) > before:
                                todo.append(node.next[answer])
        for thread in self.threads:
            self.find_writes(thread)

    def size(self):
        return sum(map(len, self.domain)), sum(len(n.next) for t in self.threads for n in t.nodes.values())

    def answers(self, node):
        op = node.op
        if op is None:
            return ()
        if op.kind == FENCE:
            self.has_fence = True
            return (None,)
        node.loc = self.loc(op.loc)
        domain = self.domain[node.loc]
        if op.kind == WRITE:
            domain.add(op.arg)
            return (None,)
        seen = [value for value in domain if op.want is None or value in op.want]
        if op.kind == UPDATE:
            domain.update(new for value in seen if (new := updated(op.arg, value)) is not None)
            assert len(domain) < 100, f"{op.loc} grows without end"
        return seen

    @staticmethod
    def find_writes(thread):
        """Which locations may still be written from each node on, as a set of bits."""
        nodes, changed = list(thread.nodes.values()), True
        for node in nodes:
            if node.op is not None and node.op.kind in (WRITE, UPDATE):
                node.writes = 1 << node.loc
        while changed:
            changed = False
            for node in reversed(nodes):
                writes = node.writes
                for successor in node.next.values():
                    writes |= successor.writes
                changed |= writes != node.writes
                node.writes = writes


Final = namedtuple("Final", "memory results asleep")

# ----- executions -------------------------------------------------------------------------------

# What is passed on by a release, and known by a thread: the view; the SeqCst accesses that happened
# before; those of them that are before, in program order, of an access to another location that happened before.
Known = namedtuple("Known", "view before passed")


def joined(a, b):
    if a is None or b is None:
        return a or b
    if a is b:
        return a
    return Known(tuple(map(max, a[0], b[0])), a[1] | b[1], a[2] | b[2])


# `at`: its place in mo. `known`: what it releases. `sc`: a bit, if it was SeqCst. `readers`: the bits of
# SeqCst accesses that read it. `is_taken`: a read-modify-write has read it.
Message = namedtuple("Message", "at value known sc readers is_taken")

# A thread's state. `own`: its SeqCst accesses. `last`: the location of its last access; `at_last`: the
# `passed` that it came with; `at_other`: that of its last access to another location. `pending`, for
# acquire fences; `fenced`, by the last release fence. `refused`: places of messages, of the next read.
State = namedtuple("State", "node known own last at_last at_other pending fenced refused")

Outcome = namedtuple("Outcome", "executions steps complaint trace")


def order_in(up, before, after):
    """The SeqCst order with one access more: those that come before and after it. None: a cycle.

    `up[i]` is the set of all that come before access i, transitively closed.
    """
    mine, rest = before, before
    while rest:
        low = rest & -rest
        mine |= up[low.bit_length() - 1]
        rest ^= low
    if mine & after:
        return None
    if after:
        added = mine | 1 << len(up)
        up = tuple(
            above | added if (above | 1 << i) & after else above for i, above in enumerate(up)
        )
    return up + (mine,)


class Explorer:
    """Goes through all executions of a program."""

    def __init__(self, program, keep=None, most=None):
        self.program, self.keep, self.most = program, keep, most
        self.executions = self.steps = 0
        # With fences, the axioms are asked at the end.
        self.knows_order = not program.has_fence

    def run(self):
        program = self.program
        nothing = Known((0.0,) * len(program.locs), 0, 0)
        threads = tuple(
            State(thread.first, nothing, 0, None, 0, 0, None, None, None) for thread in program.threads
        )
        histories = tuple(
            (Message(0.0, program.initial.get(name, 0), None, 0, 0, False),) for name in program.locs
        )
        stack = [(threads, histories, (), (0,) * len(program.locs), None)]
        while stack:
            state = stack.pop()
            complaint = self.step(state, stack)
            if complaint is not None:
                return Outcome(self.executions, self.steps, complaint, trace_of(program, state))
            if self.most is not None and self.steps > self.most:
                raise RuntimeError(f"more than {self.most} steps")
        return Outcome(self.executions, self.steps, None, None)

    def step(self, state, stack):
        """Appends what may come next; at the end of an execution, what is wrong with it."""
        self.steps += 1
        threads, histories, _, _, _ = state
        best, waits, sleeps = None, False, False
        for number, thread in enumerate(threads):
            node = thread.node
            op = node.op
            if op is None:
                continue
            if op.kind is WRITE:
                return self.write(state, number, stack)
            if op.kind is FENCE:
                return self.fence(state, number, stack)
            choices = self.choices(thread, histories[node.loc])
            may_come = any(
                other.node.writes >> node.loc & 1 for other in threads if other is not thread
            )
            if choices:
                rank = (may_come, len(choices))
                if best is None or rank < best[0]:
                    best = rank, number, choices
            elif op.want is None:
                if not may_come:
                    return None  # it has refused all that there will ever be
                waits = True
            else:
                sleeps = True
        if best is None:
            return None if waits else self.end(state, sleeps)
        (may_come, _), number, choices = best
        for at in choices:
            self.read(state, number, at, stack)
        if may_come:
            threads, histories, up, places, trace = state
            thread = threads[number]
            refused = frozenset(message.at for message in histories[thread.node.loc])
            threads = replaced(threads, number, thread._replace(refused=refused))
            stack.append((threads, histories, up, places, trace))
        return None

    @staticmethod
    def choices(thread, history):
        """Which messages its next read may take."""
        node, refused = thread.node, thread.refused
        op = node.op
        seen = thread.known.view[node.loc]
        choices = []
        for index in range(len(history) - 1, -1, -1):
            message = history[index]
            if message.at < seen:
                break
            if refused is not None and message.at in refused:
                continue
            if op.want is not None and message.value not in op.want:
                continue
            # Two updates cannot read the same message.
            if message.is_taken and op.kind is UPDATE and updated(op.arg, message.value) is not None:
                continue
            choices.append(index)
        return choices

    def end(self, state, sleeps):
        threads, histories, _, _, trace = state
        asleep = []
        for number, thread in enumerate(threads) if sleeps else ():
            if thread.node.op is None:
                continue
            # Who waits sees, in the end, the last value; if it waits for that, another branch has it.
            if histories[thread.node.loc][-1].value in thread.node.op.want:
                return None
            asleep.append(number)
        if not self.knows_order or self.keep is not None:
            from . import axioms

            graph = axioms.Graph(self.program, trace)
            if not self.knows_order and not graph.is_in_order():
                return None
            if self.keep is not None:
                self.keep(graph)
        self.executions += 1
        memory = {name: history[-1].value for name, history in zip(self.program.locs, histories)}
        results = [thread.node.result for thread in threads]
        return self.program.check(Final(memory, results, asleep))

    # ----- one access ---------------------------------------------------------------------------

    def write(self, state, number, stack):
        threads, histories, up, places, trace = state
        thread = threads[number]
        node = thread.node
        history, op = histories[node.loc], node.op
        seen = thread.known.view[node.loc]
        for index in range(len(history) - 1, -1, -1):
            if history[index].at < seen:
                break
            if not history[index].is_taken:
                self.access(state, number, stack, None, index, op.order, op.arg)

    def read(self, state, number, index, stack):
        op = state[0][number].node.op
        new = None
        if op.kind is UPDATE:
            value = state[1][state[0][number].node.loc][index].value
            new = updated(op.arg, value)
            if new is None:
                return self.access(state, number, stack, index, None, op.fail, None)
            return self.access(state, number, stack, index, index, op.order, new)
        return self.access(state, number, stack, index, None, op.order, None)

    def access(self, state, number, stack, reads, behind, order, value):
        """A read of the message of that index, a write behind the one of that index, or both."""
        threads, histories, up, places, trace = state
        node, known, own, last, at_last, at_other, pending, fenced, _ = threads[number]
        loc = node.loc
        history = histories[loc]
        view, before, passed = known
        source, released = None, None
        if reads is not None:
            source = history[reads]
            at = source.at
            if source.known is not None:
                released = source.known
                if order & ACQ:
                    view, before, passed = joined(known, released)
                else:
                    pending = joined(pending, released)
        if behind is not None:
            at = history[behind].at
            at = (at + history[behind + 1].at) / 2 if behind + 1 < len(history) else at + 1.0
        if view[loc] < at:
            view = view[:loc] + (at,) + view[loc + 1 :]

        bit = 0
        if order & SC_BIT and self.knows_order:
            bit = 1 << len(up)
            came = own | (at_last if last != loc else at_other) | before & places[loc]
            goes = 0
            if behind is not None:
                for message in history[: behind + 1]:
                    came |= message.sc | message.readers
                for message in history[behind + 1 :]:
                    goes |= message.sc
            else:
                for message in history[reads + 1 :]:
                    goes |= message.sc
            up = order_in(up, came, goes)
            if up is None:
                return None
        if last != loc:
            at_other = at_last
        at_last = passed
        passed |= own & ~places[loc]
        if bit:
            own |= bit
            before |= bit
            places = places[:loc] + (places[loc] | bit,) + places[loc + 1 :]
        known = Known(view, before, passed)

        if source is not None and (bit or behind is not None):
            source = Message(
                at=source.at,
                value=source.value,
                known=source.known,
                sc=source.sc,
                readers=source.readers | bit,
                is_taken=source.is_taken or behind is not None,
            )
            history = history[:reads] + (source,) + history[reads + 1 :]
        if behind is not None:
            released = joined(released, known if order & REL else fenced)
            message = Message(at, value, released, bit, 0, False)
            history = history[: behind + 1] + (message,) + history[behind + 1 :]
        if history is not histories[loc]:
            histories = replaced(histories, loc, history)
        answer = None if source is None else source.value
        thread = State(
            node.next[answer], known, own, loc, at_last, at_other, pending, fenced, None
        )
        read_at = None if source is None else source.at
        wrote_at = None if behind is None else at
        trace = (trace, number, node.op, order, read_at, wrote_at, answer, value)
        stack.append((replaced(threads, number, thread), histories, up, places, trace))

    def fence(self, state, number, stack):
        threads, histories, up, places, trace = state
        thread = threads[number]
        op, known, fenced = thread.node.op, thread.known, thread.fenced
        if op.order & ACQ:
            known = joined(known, thread.pending)
        if op.order & REL:
            fenced = known
        thread = thread._replace(node=thread.node.next[None], known=known, fenced=fenced)
        trace = (trace, number, op, op.order, None, None, None, None)
        stack.append((replaced(threads, number, thread), histories, up, places, trace))


def replaced(items, index, item):
    return items[:index] + (item,) + items[index + 1 :]


def steps_of(trace):
    steps = []
    while trace is not None:
        trace, *step = trace
        steps.append(step)
    return steps[::-1]


def trace_of(program, state):
    """The execution for people: its steps, and the modification orders that are not as executed."""
    lines, order = [], {}
    for number, op, how, read_at, wrote_at, answer, value in steps_of(state[4]):
        name = "fence" if op.kind == FENCE else f"{op.loc}.{op.arg[0] if op.kind == UPDATE else op.kind}"
        line = f"thread {number}: {name} {name_of(how)}"
        if read_at is not None:
            line += f" finds {answer}"
        if wrote_at is not None:
            line += f" writes {value}"
            order.setdefault(op.loc, []).append((wrote_at, value))
        elif op.kind == UPDATE:
            line += " and fails"
        lines.append(line)
    for loc, writes in order.items():
        if writes != sorted(writes):
            lines.append(f"{loc} in modification order: {[value for _, value in sorted(writes)]}")
    return lines


def explore(program, **options):
    return Explorer(program, **options).run()
