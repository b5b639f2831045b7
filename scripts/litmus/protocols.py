"""The crate's protocols, as threads. Each takes the orders that it uses, by name, so that one can be weakened."""

from .memory import (
    ACQ, ACQ_REL, REL, RLX, SC, Program, await_exchange, exchange, fetch_or, load, store, swap,
)

AWAKE = 0


# ----- clock/parking.rs -----------------------------------------------------------------------------


def ring(o, unless=lambda threshold: False):
    """`Doorbell::ring_if_earlier`; the token is under a lock, which orders like AcqRel."""
    threshold = yield load("threshold", o["bell load"])
    if threshold != AWAKE and not unless(threshold):
        found = yield exchange("threshold", threshold, AWAKE, o["bell exchange"])
        if found == threshold:
            yield swap("token", 1, ACQ_REL)


def park():
    yield await_exchange("token", 1, 0, ACQ_REL)


# ----- engine/intake, as it first was --------------------------------------------------------------


def signals(o, pushes, looks):
    """Lanes that share a word. One record for each push; a lane's value is how many it has published."""

    def producer(i):
        def thread():
            published, listed = f"published{i}", f"listed{i}"
            for n in range(1, pushes[i] + 1):
                yield store(f"record{i}.{n}", 1, RLX)
                yield swap(published, n, SC)
                if not (yield load(listed, SC)):
                    yield store(listed, 1, RLX)
                    yield fetch_or("word", 1 << i, o["word or"])
                    yield fetch_or("summary", 1, SC)

        return thread

    def reader():
        taken = (0,) * len(pushes)
        for look in range(looks):
            if (yield load("summary", SC)):
                if (yield swap("summary", 0, ACQ)):
                    word = yield swap("word", 0, o["word swap"])
                    for i in range(len(pushes)):
                        if word >> i & 1:
                            yield store(f"listed{i}", 0, SC)
                            end = yield load(f"published{i}", SC)
                            while taken[i] < end:
                                if not (yield load(f"record{i}.{taken[i] + 1}", RLX)):
                                    return "a record that is not whole"
                                taken = taken[:i] + (taken[i] + 1,) + taken[i + 1 :]
        return taken

    def check(final):
        taken = final.results[-1]
        if isinstance(taken, str):
            return taken
        for i, count in enumerate(pushes):
            word = final.memory["word"] >> i & 1
            if taken[i] < count and not (word and final.memory["summary"]):
                return f"lane {i} is deaf"
        return None

    return Program([*map(producer, range(len(pushes))), reader], check)


# ----- engine/intake: the ready list, WAKE-4 -------------------------------------------------------

READY = {
    "published swap": SC,
    "listed load": SC,
    "listed set": RLX,
    "next store": RLX,
    "head exchange": SC,
    "head load": SC,
    "head last look": SC,
    "head swap": ACQ,
    "next load": RLX,
    "listed clear": SC,
    "published load": SC,
    "bell load": SC,
    "bell exchange": RLX,
    "arm": SC,
    "disarm": RLX,
    "next is late": False,
}


def ready_producer(o, i, pushes, rings=True):
    """Lane i; in `head` and `next` it is i + 1, because 0 is the end of the list."""

    def thread():
        published, listed, me = f"published{i}", f"listed{i}", i + 1
        for n in range(1, pushes + 1):
            yield store(f"record{i}.{n}", 1, RLX)
            yield swap(published, n, o["published swap"])
            if not (yield load(listed, o["listed load"])):
                yield store(listed, 1, o["listed set"])
                found, head = -1, 0
                while found != head:
                    found = -1
                    head = yield load("head", RLX)
                    if not o["next is late"]:
                        yield store(f"next{me}", head, o["next store"])
                    found = yield exchange("head", head, me, o["head exchange"])
                if o["next is late"]:
                    yield store(f"next{me}", head, o["next store"])
                found = head = -1
            if rings:
                yield from ring(o)

    return thread


def ready_take(o, taken):
    """One look at a list that is not empty; how much is taken then, or what is wrong."""
    at = yield swap("head", 0, o["head swap"])
    opened = ()
    while at:
        i = at - 1
        if i in opened:
            return "a lane is on the list twice"
        opened += (i,)
        at = yield load(f"next{at}", o["next load"])
        yield store(f"listed{i}", 0, o["listed clear"])
    for i in opened:
        end = yield load(f"published{i}", o["published load"])
        while taken[i] < end:
            if not (yield load(f"record{i}.{taken[i] + 1}", RLX)):
                return "a record that is not whole"
            taken = taken[:i] + (taken[i] + 1,) + taken[i + 1 :]
    return taken


def ready_check(pushes):
    def check(final):
        taken, memory = final.results[-1], final.memory
        if isinstance(taken, str):
            return taken
        if final.asleep:
            return "a wake-up is lost, or a lane is deaf: the reader sleeps for ever"
        listed, at = set(), memory.get("head", 0)
        while at:
            if at in listed:
                return "the list is a circle"
            listed.add(at)
            at = memory[f"next{at}"]
        for i, count in enumerate(pushes):
            if taken[i] < count and i + 1 not in listed:
                return f"lane {i} is deaf"
        return None

    return check


def ready_list(o, pushes, looks):
    """Without sleep: a reader that looks so many times."""
    o = {**READY, **o}

    def reader():
        taken = (0,) * len(pushes)
        for look in range(looks):
            if (yield load("head", o["head load"])):
                taken = yield from ready_take(o, taken)
                if isinstance(taken, str):
                    return taken
        return taken

    producers = [ready_producer(o, i, count, rings=False) for i, count in enumerate(pushes)]
    return Program([*producers, reader], ready_check(pushes))


def ready_sleep(o, pushes, other_threshold=False, most=9):
    """With sleep: a reader that goes on until it has all, and else sleeps until it is rung; `most` times."""
    o = {**READY, **o}

    def reader():
        taken, threshold, slept = (0,) * len(pushes), 1, 0
        while taken != tuple(pushes) and slept <= most:
            if (yield load("head", o["head load"])):
                taken = yield from ready_take(o, taken)
                if isinstance(taken, str):
                    return taken
            elif most < 9 and slept == most:
                return taken
            else:
                slept = min(slept + 1, most) if most < 9 else 0
                yield store("threshold", threshold, o["arm"])
                if other_threshold:
                    threshold = 3 - threshold
                if not (yield load("head", o["head last look"])):
                    yield from park()
                yield store("threshold", AWAKE, o["disarm"])
        return taken

    producers = [ready_producer(o, i, count) for i, count in enumerate(pushes)]
    return Program([*producers, reader], ready_check(pushes))


# ----- wake/doorbell.rs, WAKE-1 and WAKE-3, alone ---------------------------------------------------

DOORBELL = {
    "publish": SC,
    "look": SC,
    "arm": SC,
    "bell load": SC,
    "bell exchange": RLX,
    "disarm": RLX,
    "drops tokens": False,
}
FAR = 9


def doorbell(o, deadlines):
    """A producer for each deadline, and a sleeper who sleeps towards the first that it knows of."""
    o = {**DOORBELL, **o}

    def producer(i):
        def thread():
            yield swap(f"task{i}", 1, o["publish"])
            yield from ring(o, lambda threshold: deadlines[i] >= threshold)

        return thread

    def sleeper():
        seen, until = (False,) * len(deadlines), FAR
        while not all(seen):
            yield store("threshold", until, o["arm"])
            found = seen
            for i in range(len(deadlines)):
                if not seen[i] and (yield load(f"task{i}", o["look"])):
                    found = found[:i] + (True,) + found[i + 1 :]
                    until = min(until, deadlines[i])
            if found == seen:
                if o["drops tokens"]:
                    yield swap("token", 0, ACQ_REL)
                yield from park()
            seen = found
            yield store("seen", seen, RLX)  # for the check alone
            yield store("threshold", AWAKE, o["disarm"])

    def check(final):
        seen, threshold = final.memory["seen"], final.memory["threshold"]
        if final.asleep and any(not s and d < threshold or threshold == AWAKE for s, d in zip(seen, deadlines)):
            return "a wake-up is lost"
        return None

    program = [*map(producer, range(len(deadlines))), sleeper]
    return Program(program, check, seen=(False,) * len(deadlines))


# ----- engine/intake/lane.rs, LANE-1 and LANE-3 ----------------------------------------------------

CLOSE = {"swap": SC, "put back": RLX, "close": ACQ, "look": SC, "puts back": True, "closes in two steps": False}
CLOSED = 8


def close(o, pushes):
    """A lane each; the reader looks at all, and then closes them."""
    o = {**CLOSE, **o}

    def producer(i):
        def thread():
            accepted, refused = 0, 0
            for push in range(pushes[i]):
                n = accepted + 1
                yield store(f"record{i}.{n}", push + 1, RLX)
                before = yield swap(f"published{i}", n, o["swap"])
                if before & CLOSED:
                    if o["puts back"]:
                        yield store(f"published{i}", before, o["put back"])
                    refused |= 1 << push + 1
                else:
                    accepted = n
            return accepted, refused

        return thread

    def reader():
        taken = ((),) * len(pushes)
        for round in range(2):
            for i in range(len(pushes)):
                if round == 0:
                    end = yield load(f"published{i}", o["look"])
                elif o["closes in two steps"]:
                    end = yield load(f"published{i}", o["close"])
                    yield store(f"published{i}", end | CLOSED, RLX)
                else:
                    end = yield fetch_or(f"published{i}", CLOSED, o["close"])
                mine = taken[i]
                while len(mine) < end & ~CLOSED:
                    mine += ((yield load(f"record{i}.{len(mine) + 1}", RLX)),)
                taken = taken[:i] + (mine,) + taken[i + 1 :]
        return taken

    def check(final):
        for mine, (accepted, refused) in zip(final.results[-1], final.results):
            if 0 in mine:
                return "a record that is not whole"
            if any(refused >> record & 1 for record in mine):
                return "a record that was taken, and refused"
            if len(mine) != accepted:
                return "a record that was neither taken nor refused, or both"
        return None

    return Program([*map(producer, range(len(pushes))), reader], check)


# ----- scheduler/handle.rs, HANDLE-1 ---------------------------------------------------------------

PENDING, CANCELLED, FORGOTTEN = 1, 2, 3
FAMILY = {
    "word exchange": SC,
    "word look": SC,
    "shared load": SC,
    "shared store": SC,
    "cancelled store": RLX,
    "cancelled load": RLX,
    "keeps slot": True,
    "looks again": True,
    "fill": REL,
    "birth store": REL,
    "birth load": ACQ,
}


def family(o, cloners=1, forgets=False):
    """A cancel against clones of the same handle, a family. The word forgets the cancel some time, so at the end the
    family must know: that is the outcome that the clones share. With `forgets` that may be soon, because the slot is
    used again, often: when the canceller has let go of the slot, or at once if it has none to keep (it has doomed a
    series)."""
    o = {**FAMILY, **o}

    def canceller():
        if (yield exchange("word", PENDING, CANCELLED, o["word exchange"])) != PENDING:
            return False
        yield store("cancelled", 1, o["cancelled store"])
        if (yield load("shared", o["shared load"])) and (yield load("family", ACQ)):
            yield store("knows", 1, RLX)
        if forgets and o["keeps slot"]:
            yield swap("depot", 1, ACQ_REL)
        return True

    def cloner():
        if not (yield load("family", ACQ)):
            yield exchange("family", 0, 1, ACQ_REL)
        yield store("shared", 1, o["shared store"])
        is_cancelled = yield load("cancelled", o["cancelled load"])
        if not is_cancelled:
            is_cancelled = yield load("knows", RLX)
        if not is_cancelled:
            is_cancelled = (yield load("word", o["word look"])) == CANCELLED
            if forgets and is_cancelled:
                is_cancelled = (yield load("birth", o["birth load"])) == 0  # otherwise it may be the word of another task
        if not is_cancelled and o["looks again"]:
            is_cancelled = yield load("cancelled", RLX)
        if is_cancelled:
            yield store("knows", 1, RLX)

    def others():
        if o["keeps slot"]:
            yield await_exchange("depot", 1, 0, ACQ_REL)
            yield store("birth", 1, o["birth store"])
            yield store("word", FORGOTTEN, o["fill"])
        else:
            yield await_exchange("word", CANCELLED, FORGOTTEN, ACQ_REL)
            yield store("birth", 1, o["birth store"])

    def check(final):
        if final.results[0] and not final.memory["knows"]:
            return "a clone does not know of the cancel"
        return None

    threads = [canceller] + [cloner] * cloners + [others] * forgets
    return Program(threads, check, word=PENDING)


# ----- engine/slots/state.rs, WORD-4 ---------------------------------------------------------------

RUNNING, FREE, NEXT = 2, 3, 4
END = {"end": REL, "look": ACQ, "fill": REL, "birth store": REL, "birth load": ACQ}


def end(o, lookers=2, refills=False):
    """A run against those who ask whether it is done. With `refills` the next task comes into the slot."""
    o = {**END, **o}

    def runner():
        yield exchange("word", PENDING, RUNNING, SC)
        yield store("data", 1, RLX)
        yield store("word", FREE, o["end"])
        yield swap("depot", 1, ACQ_REL)  # the slot goes to the depot, under its lock

    def looker():
        word = yield load("word", o["look"])
        is_another = refills and (yield load("birth", o["birth load"])) == 1
        if is_another or word in (FREE, NEXT):
            return (yield load("data", RLX))
        return None

    def filler():
        yield await_exchange("depot", 1, 0, ACQ_REL)
        yield store("birth", 1, o["birth store"])
        yield store("word", NEXT, o["fill"])

    def check(final):
        if 0 in final.results:
            return "done, but what it did is not seen"
        return None

    return Program([runner] + [looker] * lookers + [filler] * refills, check, word=PENDING)


# ----- engine/termination.rs, END-5 ----------------------------------------------------------------

DOOMED, ENDING = 5, 6
LAST_RUN = {"closing store": SC, "engine look": SC, "last look": SC, "closing load": SC}


def last_run(o, is_cancelled=False, has_thread=False):
    """A series that ends of itself, or by a cancel, while its scheduler closes. The engine, which may have a thread of
    its own, waits for the run if it finds the series in it. Then the runner has to see that it must tell."""
    o = {**LAST_RUN, **o}

    def stopper():
        yield store("closing", 1, o["closing store"])
        if has_thread:
            yield swap("token", 1, ACQ_REL)
            return None
        return (yield load("word", o["engine look"])) == RUNNING

    def engine():
        yield await_exchange("token", 1, 0, ACQ_REL)
        return (yield load("word", o["engine look"])) == RUNNING

    def canceller():
        yield exchange("word", RUNNING, DOOMED, SC)

    def runner():
        if is_cancelled:
            if (yield exchange("word", RUNNING, PENDING, SC)) == RUNNING:
                return True  # the cancel came later, and finds the series waiting
        else:
            yield exchange("word", RUNNING, ENDING, SC)
        yield load("word", o["last look"])
        yield store("word", FREE, REL)
        return bool((yield load("closing", o["closing load"])))

    def check(final):
        waits, tells = final.results[1 if has_thread else 0], final.results[-1]
        return "the close waits, and nobody tells it" if waits and not tells else None

    threads = [stopper] + [engine] * has_thread + [canceller] * is_cancelled + [runner]
    return Program(threads, check, word=RUNNING)
