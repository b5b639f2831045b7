#!/usr/bin/env python3
"""Plants bugs, one at a time, and shows which tests catch each. None may survive.

    scripts/mutations.py            all of them, some forty minutes on two cores
    scripts/mutations.py drift      those whose name has that in it

What `scripts/mutants.py` makes by itself is not planted here: a function that does nothing or returns a default,
another operator, a `!` or an arm of a match less. Here are the faults that no such change makes: weaker orderings,
steps in another order, a lost call in the middle of a function, a wrong constant, argument or phase, a condition that
leaves something out. Each names the suite that has to notice it, so it proves that suite as well.

It works on a copy of the tree under target/, and changes nothing here.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutations" / "tree"
BUILD = ROOT / "target" / "mutations" / "build"

TESTS = ["cargo", "test", "--no-fail-fast"]


def models(name):
    return ["cargo", "test", "--release", "--lib", f"models::{name}", "--no-fail-fast"]


def tests(*names):
    return TESTS + [part for name in names for part in ("--test", name)]


# Name, file, what is replaced, by what, and the suite that has to notice.
MUTATIONS = [
    # Time
    ("early by a tick", "src/wheel/buckets.rs",
     "Tick(self.granularity.div_ceil(deadline))", "Tick(self.granularity.div_ceil(deadline).saturating_sub(1))",
     tests("s01_s07_time", "wheel_model")),
    ("late in exact mode", "src/engine/next_wakeup.rs",
     "            Precision::Exact => Some(deadline),", "            Precision::Exact => Some(Moment(deadline.0 + 1_000_000)),",
     tests("s01_s07_time", "driver_model")),
    ("early at the head of the ready queue", "src/engine/ready.rs",
     "let is_due = self.sorted.front().is_some_and(|entry| entry.deadline <= now.0);",
     "let is_due = self.sorted.front().is_some();", tests("s01_s07_time")),
    ("late by a tick", "src/time/tick.rs",
     "Moment(tick.0.saturating_mul(self.tick.get()))", "Moment((tick.0 + 1).saturating_mul(self.tick.get()))",
     tests("s01_s07_time", "driver_model")),
    ("order lost between far and near", "src/wheel/buckets.rs",
     "half - present == 1 && self.far.get(half).is_none()", "half - present == 1", tests("wheel_model")),
    ("a far half-turn forgotten", "src/wheel/far.rs",
     "            *self.get_or_insert(half) = half_turn;\n", "            drop(half_turn);\n", tests("wheel_model")),
    ("no ring for what is due now", "src/engine/admit.rs",
     "entry.is_due_now() || is_much", "is_much", tests("s01_s07_time")),
    ("the last look believes the flow", "src/engine/next_wakeup.rs",
     "!self.reader.is_behind(cut) && earliest >= threshold",
     "{ let _ = (earliest, threshold); !self.reader.is_behind(cut) }", tests("storms", "s01_s07_time")),
    ("handed over before all is in", "src/engine/mod.rs",
     "        if !self.shared.has_a_thread && self.reader.is_behind(cut) {",
     "        if false && self.reader.is_behind(cut) {", tests("s01_s07_time", "driver_model")),
    ("a sweep that goes on in blocks that are others now", "src/wheel/sweep.rs",
     "            self.sweep.position = Position::START;\n", "", TESTS + ["--lib"]),
    # Cancel
    ("a claim that takes nothing", "src/engine/slots/state.rs",
     "self.transition(generation, from, Phase::Running)", "self.transition(generation, from, from)",
     tests("s08_s11_cancel", "s12_s16_repeating")),
    ("leaked closure", "src/scheduler/handle.rs",
     "                if let Some(thrown) = body.discard() {\n"
     "                    shared::report(scheduler, thrown); // the drop of a captured value has panicked (S9)\n"
     "                }\n",
     "                std::mem::forget(body);\n", tests("s08_s11_cancel")),
    ("a closure dropped twice", "src/engine/slots/closure.rs",
     "let mut this = ManuallyDrop::new(self);\n        let run_once", "let mut this = self;\n        let run_once", TESTS + ["--lib"]),
    ("reused generation", "src/engine/slots/state.rs",
     "self.generation().wrapping_add(1)", "self.generation()", tests("s08_s11_cancel")),
    ("generations begin anew after a trim", "src/engine/slots/trim.rs",
     "blocks::given_back(slots.start).fetch_max(newest, Ordering::Relaxed);", "let _ = newest;", tests("memory")),
    ("a page given back with a task in it", "src/engine/slots/depot.rs",
     "let is_free = self.pages[group.clone()].iter().all(|slots| *slots == u64::MAX);",
     "let is_free = self.pages[group.clone()].iter().all(|slots| *slots != 0);", tests("memory")),
    # Repeating
    ("drift", "src/time/repeat.rs",
     "let next = planned.after_nanos(period);", "let next = ended.after_nanos(period);",
     TESTS + ["--lib"] + ["--test", "s12_s16_repeating"]),
    ("a skip too many", "src/time/repeat.rs",
     "(overdue / period + 1)", "(overdue / period + 2)", TESTS + ["--lib"]),
    ("a series that does not hear its cancel", "src/engine/slots/state.rs",
     "        self.transition_with(generation, Phase::Running, |word| {\n"
     "            Some(Word(word.in_phase(Phase::Pending).0 ^ ODD))\n"
     "        })",
     "        let word = Word(self.load().in_phase(Phase::Pending).0 ^ ODD);\n"
     "        let _ = generation;\n"
     "        self.0.store(word.0, Ordering::Release);\n"
     "        Some(word)", tests("s12_s16_repeating", "s08_s11_cancel")),
    ("a panic that does not end the series", "src/engine/run.rs",
     "            _ => Some(task),\n        };", "            Err(_) => self.rearm(task, due).err(),\n            _ => Some(task),\n        };",
     tests("s12_s16_repeating")),
    ("a dropped leftover series can still be cancelled", "src/engine/run.rs",
     "_ => Running::claim_last(key),", "_ => Running::claim(key, from),", models("ends")),
    ("an end that looks like a cancel", "src/engine/slots/state.rs",
     "self.transition(generation, Phase::Running, Phase::Ending)",
     "self.transition(generation, Phase::Running, Phase::Doomed)", tests("s12_s16_repeating", "driver_model")),
    # Executors
    ("half a batch", "src/executor/thread_pool.rs",
     "self.taken.fetch_add(1, Ordering::Relaxed)", "self.taken.fetch_add(2, Ordering::Relaxed)",
     tests("s17_s19_executor", "storms")),
    ("a pool that wakes nobody else", "src/executor/thread_pool.rs",
     "        if queue.idle > 0 {\n            drop(queue);\n            self.work.notify_one();\n        } else if",
     "        if queue.idle > 0 {\n            drop(queue);\n        } else if", tests("s17_s19_executor", "storms")),
    # Shutdown
    ("what the intake held is lost at a close", "src/engine/intake/reader.rs",
     "        self.open = (0..self.lanes.len()).collect();\n", "        self.open.clear();\n",
     TESTS + ["--lib", "intake::"]),
    ("a lane that does not close", "src/engine/intake/lane.rs",
     "self.published.fetch_or(CLOSED, Ordering::Acquire)", "self.published.load(Ordering::Acquire)",
     tests("s20_s24_shutdown", "storms")),
    ("a driver's close does not wait for another thread's", "src/scheduler/driver.rs",
     "let waited = if self.shared.is_turned_here() { None } else { termination.wait(until) };",
     "let (waited, _) = (None, until);", TESTS + ["--test", "s20_s24_shutdown", "s20_"]),
    ("leftovers in any order", "src/engine/termination.rs",
     "        leftovers.sort_by_key(|task| task.deadline);\n", "",
     tests("s20_s24_shutdown", "driver_model")),
    ("a series in its run is nobody's", "src/engine/termination.rs",
     "if word.is_pending() || word.is_running() {", "if false {", tests("s29_s31_end_of_life")),
    ("what waits in an executor is forgotten", "src/engine/in_flight.rs",
     "if !holder::is_over(oldest[over].key()) {", "if false {", tests("s29_s31_end_of_life")),
    ("what is over is remembered for ever", "src/engine/in_flight.rs",
     "            if !holder::is_over(first.key()) {\n", "            if true {\n", TESTS + ["--lib", "in_flight"]),
    ("an old executor runs what has moved", "src/engine/slots/state.rs",
     "(!word.has_moved()).then(|| word.in_phase(Phase::Running))", "Some(word.in_phase(Phase::Running))",
     tests("s29_crossings")),
    ("a cancel wins against a leftover that runs", "src/engine/slots/state.rs",
     "if word.is_series() { Phase::Ending } else { Phase::Running }", "Phase::Running", tests("s29_crossings")),
    ("two runs that close wait for each other", "src/engine/termination.rs",
     "!(this_thread::runs(key) || lock(&WAITING).contains(&key))", "!this_thread::runs(key)",
     tests("s29_s31_end_of_life")),
    ("a leftover runs inside of its own run", "src/scheduler/leftovers.rs",
     "self.task.filter(|task| task.is_in_run) else", "self.task.filter(|_| false) else", tests("s29_s31_end_of_life")),
    ("a decision is carried out after the end is told", "src/engine/termination.rs",
     "        state.leftover_runs += usize::from(decided.is_some()); // until it is carried out\n",
     "        state.leftover_runs += usize::from(decided.is_some());\n        if decided.is_some() { state.leftover_runs -= 1; self.changed.notify_all(); }\n",
     tests("s29_s31_end_of_life")),
    ("a cancel of what has moved is counted where it was", "src/scheduler/handle.rs",
     "                let scheduler = moved_to.unwrap_or(self.scheduler);\n",
     "                let scheduler = self.scheduler;\n                let _ = moved_to;\n",
     tests("s29_s31_end_of_life", "driver_model")),
    ("nobody waits for what runs", "src/engine/termination.rs",
     "self.last_runs.is_empty() && self.leftover_runs == 0", "self.leftover_runs == 0", tests("s29_s31_end_of_life")),
    ("a task whose name is read is hidden from the sweep", "src/engine/slots/state.rs",
     "        self.0 & LOW_2 == Phase::Pending as u64\n", "        self.is_in(Phase::Pending) && LOW_2 > 0\n", TESTS + ["--lib", "state"]),
    # Bounds and sight
    ("a place that is never free again", "src/engine/intake/lane.rs",
     "            limit.leave();\n", "            let _ = limit;\n", tests("s25_s27_bounds_and_sight")),
    ("lateness off by far", "src/observe/stats.rs",
     "let doubling = nanos.ilog2() - STEPS_BITS;", "let doubling = nanos.ilog2() - STEPS_BITS + 1;",
     TESTS + ["--lib"] + ["--test", "s25_s27_bounds_and_sight"]),
    # Workers
    ("rx: a drain rests after the lock is free", "src/rx/serial.rs",
     "                state.has_drain = false;\n",
     "                drop(state);\n                self.state().has_drain = false;\n", models("workers")),
    ("rx: a series that goes on misses its cancel", "src/rx/serial.rs",
     "        if job.is_done() {\n            self.remove(job.position());\n        }\n", "", models("workers")),
    ("rx: every task brings a drain", "src/rx/serial.rs",
     "        if had_one {\n            return None;", "        if had_one && !had_one {\n            return None;",
     models("workers")),
    ("rx: a refused drain is lost", "src/rx/drain.rs",
     "            if queue.has_more() {\n                Arc::clone",
     "            if queue.has_more() && false {\n                Arc::clone", models("workers")),
    ("rx: a cancel of a series in two steps", "src/job.rs",
     "        let Some(work) = stage.leave_waiting(Stage::Cancelled) else { return false };\n",
     "        drop(stage);\n        let mut stage = lock(&self.stage);\n"
     "        let Some(work) = stage.leave_waiting(Stage::Cancelled) else { return false };\n",
     models("workers")),
    # Pools
    ("pool: a series that lags goes first", "src/pool/task.rs",
     "work.next_run(ended).max(ended)", "work.next_run(ended)", tests("pool")),
    ("pool: a pool that is shut down refuses for now", "src/pool/scheduled.rs",
     "ScheduleError::Closed => Rejected::for_good(task)", "ScheduleError::Closed => Rejected::new(task)", tests("pool")),
    ("pool: a cancelled task's future waits on", "src/pool/task.rs",
     "        if is_won {\n", "        if !is_won {\n", tests("pool")),
    ("pool: the core ends too", "src/pool/workers.rs",
     "if count.running <= self.settings.core || is_needed", "if is_needed", tests("pool")),
    ("deadlock: a pool is full when one thread waits", "src/executor/deadlock.rs",
     "in_pool.len() < by.limit", "in_pool.is_empty()", tests("pool", "future")),
    ("deadlock: a task that runs already could run elsewhere", "src/executor/deadlock.rs",
     "if runs_it.is_empty() && by.is_none_or", "if by.is_none_or", TESTS + ["--lib", "deadlock::"]),
    ("deadlock: block_on gives up though others could wake it", "src/executor/deadlock.rs",
     "clones == 2 + 2 * timers", "clones >= 2 + 2 * timers", tests("future")),
    ("rx: dispose forgets what the drain has in front of it", "src/rx/serial.rs",
     "[std::mem::take(&mut outgoing.tasks), ", "[VecDeque::new(), ", tests("rx_worker")),
    ("rx: delays go through the executor", "src/rx/scheduler.rs",
     "Timers::Wheel(scheduler.with_executor(Inline))", "Timers::Wheel(scheduler.clone())", tests("rx_worker")),
    ("rx: a batch of a million", "src/rx/drain.rs",
     "const BATCH: usize = 64;", "const BATCH: usize = 1 << 20;", tests("rx_worker")),
    ("rx: drains nest on inline", "src/rx/drain.rs",
     "if before.hands_over && before.is_inline {", "if false && before.is_inline {", tests("rx_worker")),
    ("rx: a pool's drain counts as inline", "src/rx/drain.rs",
     "let is_inline = before.hands_over && ", "let is_inline = ", tests("rx_worker")),
    ("rx: a cancelled delay stays in the wheel", "src/rx/serial.rs",
     "                timer.into_iter().for_each(|timer| _ = timer.cancel());", "                drop(timer);",
     tests("rx_worker")),
    ("rx: a timer of an earlier wait", "src/rx/delayed.rs",
     "        self.last_ticket += 1;\n", "        self.last_ticket = self.by_ticket.len() as u64;\n",
     TESTS + ["--lib"]),
    ("rx: pending counts who has gone", "src/rx/serial.rs",
     "waiting.saturating_sub(self.cancelled.load(Ordering::Relaxed))", "waiting", tests("rx_worker")),
    ("rx: a disposal overtakes an arrival", "src/rx/serial.rs",
     "        if waited.is_some() {\n", "        if true || waited.is_some() {\n", models("workers")),
    ("rx: an executor that is gone is asked again", "src/rx/drain.rs",
     "if rejected.is_for_good() {", "if rejected.is_for_good() && false {", tests("rx_end")),
    ("rx: the task that finds the executor gone is lost", "src/rx/drain.rs",
     "back = queue.executor_is_gone(newest);", "back = queue.executor_is_gone(newest.filter(|_| false));",
     tests("rx_end")),
    ("rx: what nobody holds is offered for ever", "src/rx/drain.rs",
     "failures >= MAX_FAILURES &&", "failures == u32::MAX &&", tests("rx_end")),
    ("rx: each refused drain is offered by itself", "src/rx/drain.rs",
     "                return false;\n", "                continue;\n", tests("rx_end")),
    ("rx: arrivals in any order", "src/rx/delayed.rs",
     "self.first().map_or(itself, |first| first.min(itself)).1", "itself.1", tests("rx_over")),
    ("rx: a delay that is refused is brought along", "src/rx/serial.rs",
     "        let ticket = state.delayed.insert(Arc::clone(job), deadline);\n        let is_too_long",
     "        let ticket = state.delayed.insert(Arc::clone(job), deadline);\n"
     "        state.delayed.put_in_order(ticket);\n"
     "        let is_too_long", tests("rx_over")),
    ("rx: a series outlives its single worker", "src/rx/single.rs",
     "(std::mem::take(&mut tasks.waiting), tasks.running.take())",
     "(std::mem::take(&mut tasks.waiting), None::<Arc<SubTask>>)", tests("rx_worker")),
    ("rx: a set keeps what is over", "src/rx/composite.rs",
     "let is_crowded = set.handles", "let is_crowded = false && set.handles", tests("rx_others")),
    ("rx: spans of a stranger's subscriber", "src/rx/spans.rs",
     "                    subscriber.exit(id);\n                }", "                }",
     ["cargo", "test", "--no-fail-fast", "--features", "tracing", "--test", "rx_others"]),
    ("rx: a context that stays", "src/rx/context.rs",
     "        drop(self.capture.replace(before));\n", "        drop(before);\n", tests("rx_others")),
    # The message loop
    ("loop: it falls asleep after the lock is free", "src/message_loop/inbox.rs",
     "        if sleeps {\n            inbox.state = LoopState::Asleep(until);",
     "        if sleeps {\n"
     "            drop(inbox);\n"
     "            inbox = self.inbox();\n"
     "            inbox.state = LoopState::Asleep(until);", models("loops")),
    ("loop: it falls asleep on news", "src/message_loop/inbox.rs",
     "inbox.immediate.is_empty() && !self.has_changed();", "inbox.immediate.is_empty();", models("loops")),
    ("loop: the pump waits longer than was said", "src/message_loop/queue.rs",
     "        self.shared.removed_cancelled(queues.trim_delayed());\n        if self.shared",
     "        if self.shared", tests("message_loop", "message_loop_hosts")),
    ("loop: a run in between silences the waker", "src/message_loop/turn.rs",
     "self.0.shared.set_state(LoopState::NotRunning);", "self.0.shared.set_state(LoopState::Awake);",
     tests("message_loop_hosts")),
    ("loop: what the last look brought is forgotten", "src/message_loop/turn.rs",
     "        if self.queue.has_work(self.is_nested()) {\n            return NextStep::GoOn;",
     "        if false {\n            return NextStep::GoOn;", models("loops")),
    ("loop: the pump falls asleep over a ring", "src/message_loop/pump.rs",
     "self.state.compare_exchange(SILENT, ASLEEP, success, failure).is_ok()",
     "{ _ = (success, failure); self.state.swap(ASLEEP, Ordering::Relaxed); true }", models("loops")),
    ("loop: a handle's quit is not told", "src/message_loop/run_loop.rs",
     "        self.quit.now.store(true, Ordering::Relaxed);\n        self.shared.notify();",
     "        self.quit.now.store(true, Ordering::Relaxed);", models("loops")),
    ("loop: early", "src/message_loop/queue.rs",
     "            deadline <= self.last_reading.get()\n",
     "            deadline <= self.last_reading.get() + std::time::Duration::from_nanos(1)\n", tests("message_loop")),
    ("loop: equal deadlines in any order", "src/message_loop/queue.rs",
     "(other.deadline, other.sequence).cmp(&(self.deadline, self.sequence))",
     "(other.deadline, self.sequence).cmp(&(self.deadline, other.sequence))", tests("message_loop")),
    ("loop: delayed tasks wait for the queue to be empty", "src/message_loop/turn.rs",
     "        if self.shared.has_changed() {", "        if false && self.shared.has_changed() {",
     tests("message_loop")),
    ("loop: it wakes itself", "src/message_loop/inbox.rs",
     "            (LoopState::Awake, _) => false,\n", "            (LoopState::Awake, _) => true,\n",
     tests("message_loop_hosts")),
    ("loop: a quit from elsewhere starts what is delayed", "src/message_loop/run_loop.rs",
     "Quit::No | Quit::WhenIdle => is_due(),", "Quit::No | Quit::WhenIdle | Quit::ImmediateOnly => is_due(),",
     tests("message_loop")),
    ("loop: an idle phase without an end", "src/message_loop/turn.rs",
     "if self.has_idled.replace(true) {", "if self.has_idled.get() {", tests("message_loop", "message_loop_hosts")),
    ("loop: a reply is dropped where its task was", "src/message_loop/runner.rs",
     "            self.replies_to.drop_on_loop(Box::new(reply));\n", "            drop(reply);\n", tests("message_loop_threads")),
    ("loop: handlers go on after an end", "src/message_loop/turn.rs",
     "|_: &&u64| !self.must_quit_now();", "|_: &&u64| true;", tests("message_loop")),
    ("loop: a dropped thread starts nothing more", "src/message_loop/looper.rs",
     "self.runner.shared.quit(Quit::ImmediateOnly);", "self.runner.shared.quit(Quit::Now);",
     tests("message_loop_threads")),
    ("loop: a loop that is gone keeps handlers", "src/message_loop/turn.rs",
     "            self.remove_idle_handler(IdleKey(key));\n", "", tests("message_loop")),
    ("loop: a quit safely moves on", "src/message_loop/run_loop.rs",
     "        if !is_again {", "        if !is_again || is_again {", TESTS + ["--lib", "run_loop"]),
    ("loop: an overloaded series keeps all others waiting", "src/message_loop/queue.rs",
     "ended.map_or(planned, |ended| planned.max(ended));", "ended.map_or(planned, |_| planned);", tests("message_loop")),
    ("loop: one that has quit refuses for now", "src/message_loop/runner.rs",
     "ScheduleError::Closed => Rejected::for_good(task),", "ScheduleError::Closed => Rejected::new(task),",
     tests("message_loop_threads")),
    ("loop: a full one refuses for good", "src/message_loop/runner.rs",
     "            _ => Rejected::new(task),", "            _ => Rejected::for_good(task),", tests("message_loop_threads")),
    ("loop: a local series runs once", "src/message_loop/local.rs",
     "        entry.closure.set(Some(f));\n", "", tests("message_loop_local")),
    ("loop: a wake after the poll is not posted", "src/message_loop/spawn.rs",
     "            Stage::PollAgain => self.wake_by_ref(),", "            Stage::PollAgain => {}", models("loops")),
    ("loop: a future that is cancelled elsewhere stays", "src/message_loop/spawn.rs",
     "        if !matches!(before, Stage::Polling | Stage::PollAgain) {", "        if false {", models("loops")),
    ("loop: a future that is cancelled in its poll stays", "src/message_loop/spawn.rs",
     "            Stage::Cancelled | Stage::Over => drop(self.key.take()),",
     "            Stage::Cancelled | Stage::Over => {}", models("loops")),
    ("loop: the handle of a future that is dropped waits for ever", "src/message_loop/spawn.rs",
     "        if !self.outcome.is_over.get() {", "        if false {", tests("message_loop_local")),
    ("loop: a cancelled future keeps its place", "src/message_loop/spawn.rs",
     "        self.shared().no_longer_pending(); // the step to `Cancelled` does so, like that to `Over` (SPAWN-4)\n",
     "", tests("message_loop_local")),
    ("each of a row of cancelled timeouts wakes the thread", "src/engine/next_wakeup.rs",
     "self.served_at(earliest).filter(|at| *at > now);",
     "self.served_at(earliest.max(Moment::NEVER)).filter(|at| *at > now);", tests("s01_s07_time")),
    # Futures
    ("future: one that has rung counts as pending", "src/scheduler/alarm.rs",
     "holder::word(self.key).is_some_and(|word| word.generation() == self.key.generation)",
     "holder::word(self.key).is_some()", TESTS + ["--test", "future", "s01_"]),
    ("future: the last handle ends its scheduler before its alarm", "src/future/sleep.rs",
     "    alarm: Option<(Alarm, Instant)>,\n    scheduler: Arc<Scheduler>,\n",
     "    scheduler: Arc<Scheduler>,\n    alarm: Option<(Alarm, Instant)>,\n", tests("future")),
    ("future: a weak handle is a strong one", "src/scheduler/mod.rs",
     "WeakScheduler { service: Arc::downgrade(&self.service), own: self.own.clone() }",
     "std::mem::forget(self.clone());\n"
     "        WeakScheduler { service: Arc::downgrade(&self.service), own: self.own.clone() }",
     tests("s20_s24_shutdown")),
    ("future: sleepers are counted after the end is told", "src/engine/shutdown.rs",
     "        let mut wakers = self.shared.take_wakers(",
     "        self.shared.termination.fulfil(Vec::new(), Vec::new(), &[], |_| None, || None);\n"
     "        let mut wakers = self.shared.take_wakers(", tests("future")),
    ("future: an end wakes nobody", "src/engine/shutdown.rs",
     "        self.shared.wake(&mut wakers); // they find the scheduler closed\n", "        drop(wakers);\n",
     tests("future")),
    ("future: wakers are leftovers", "src/engine/shutdown.rs",
     "|entry: &Entry| entry.runner() == Runner::TickThread;", "|_: &Entry| false;", tests("future")),
    ("future: a waker passes a task that came before it", "src/engine/dispatch.rs",
     "                    self.flush(&target);\n                    self.release", "                    self.release",
     tests("future")),
    ("future: a row of wakers goes on into the tasks", "src/engine/ready.rs",
     "        self.peek().filter(|next| next.runner() == Runner::TickThread)?;\n", "", tests("future")),
    ("future: a row of wakers goes on into the future", "src/engine/ready.rs",
     """?;
        self.pop(now)
""", """?;
        self.pop(Moment::NEVER)
""", tests("future")),
    ("future: wakers count as no share of a turn", "src/engine/dispatch.rs",
     "left -= self.wake(entry, left.min(BATCH - 1))", "_ = self.wake(entry, BATCH - 1)", tests("future")),
    ("future: a row of wakers is as long as a turn", "src/engine/dispatch.rs",
     "left.min(BATCH - 1)", "left", tests("future")),
    ("future: a clock that panics takes a waker along", "src/engine/run.rs",
     "let now = self.recently().unwrap_or(said_last);", "let _ = said_last;\n        let now = self.now();",
     tests("future")),
    ("future: ready before its time at the end", "src/future/sleep.rs",
     "if !is_pending && self.is_elapsed() {", "if !is_pending && (self.is_elapsed() || self.scheduler.is_closed()) {",
     tests("future")),
    ("future: brought forward, and nobody told", "src/future/sleep.rs",
     "            return; // the alarm stays, if there is one (SLEEP-2)",
     "            return;\n        }\n        if self.deadline > Instant::now() {\n            return;",
     tests("future")),
    ("future: put off, and set anew each time", "src/future/sleep.rs",
     "*rings_at <= deadline)", "*rings_at == deadline)", tests("future")),
    ("future: the time is asked before the future", "src/future/timeout.rs",
     "        if let Poll::Ready(output) = future.poll(context) {",
     "        if sleep.is_elapsed() {\n            return Poll::Ready(Err(Elapsed { reason: None }));\n        }\n        if let Poll::Ready(output) = future.poll(context) {",
     tests("future")),
    ("future: a call keeps its panic to itself", "src/future/call.rs",
     "                resume_unwind(Box::new(message)); // the scheduler counts and reports it",
     "                drop(message);", tests("future")),
    ("future: a panicking waker takes the others along", "src/engine/run.rs",
     "caught(|| wakers.by_ref().for_each(Waker::wake))", "Ok::<(), Payload>(wakers.by_ref().for_each(Waker::wake))",
     tests("future")),
    ("future: the drift of an interval adds up", "src/future/interval.rs",
     "period.next_run(due, self.sleep.scheduler().now())", "period.next_run(self.sleep.scheduler().now(), self.sleep.scheduler().now())",
     tests("future")),
    ("future: an entry that came late by another lane hides a live one", "src/wheel/entry.rs",
     "&& self.generation > other.generation", "&& self.generation != other.generation", TESTS + ["--lib", "ready"]),
    ("future: a reading that lies ahead holds a lane up", "src/engine/admit.rs",
     "let now = Moment(self.intake.reading_of_last_turn());", "let now = self.timeline.moment(read);", tests("future")),
    ("lane: an old stamp passes the others", "src/engine/intake/lane.rs",
     "        record.stamp = self.stamp;\n", "", TESTS + ["--lib", "intake"]),
    ("lane: a turn takes what is after its cut", "src/engine/intake/reader.rs",
     "            return lanes[only].take_before(cut, most, take);",
     "            return lanes[only].take_before(u64::MAX, most, take);", TESTS + ["--lib", "intake"]),
    ("lane: a merge that does not stop at the other lane", "src/engine/intake/reader.rs",
     "lane.take_before(cut.min(others), most - taken, &mut take)",
     "lane.take_before(cut.max(others), most - taken, &mut take)", TESTS + ["--lib", "intake"]),
    ("lane: a turn that takes all", "src/engine/intake/reader.rs",
     "lane.take_before(cut.min(others), most - taken, &mut take)",
     "lane.take_before(cut.min(others), usize::MAX, &mut take)", TESTS + ["--lib", "intake"]),
    ("lane: one is unlisted while it is on the list", "src/engine/intake/lane.rs",
     "        self.seen = self.lane.published.load_in_order() & !CLOSED;",
     "        self.lane.listed.store_in_order(false);\n"
     "        self.seen = self.lane.published.load_in_order() & !CLOSED;", models("lanes")),
    ("lane: a consumer that stands still holds for ever", "src/executor/backpressure.rs",
     "            if now - began >= LONGEST {\n                break;\n            }\n", "", TESTS + ["--lib", "backpressure"]),
    ("overload: blocks are never counted as emptied", "src/engine/intake/lane.rs",
     "        self.lane.signals.emptied.add(1);\n", "", TESTS + ["--lib", "intake"]),
    ("overload: a great half-turn is brought near when it begins", "src/wheel/buckets.rs",
     "if len < GREAT || half", "if len < usize::MAX || half", TESTS + ["--lib", "wheel"]),
    ("overload: a task comes back to the executor of the batch", "src/engine/dispatch.rs",
     "entries.push((word.executor(), entry.due_now(), for_good));",
     "entries.push((target.number(), entry.due_now(), for_good));", TESTS + ["--test", "overload", "comes_back"]),
    ("overload: an executor is asked again at once, for ever", "src/engine/retry_queue.rs",
     "        self.pause = self.pause.max(first_pause);\n        self.retry_at",
     "        self.pause = 0;\n        self.retry_at",
     TESTS + ["--test", "overload", "s07_s30", "--test", "s17_s19_executor"]),
    ("overload: one that is refused again loses its place", "src/engine/retry_queue.rs",
     "            self.first -= 1;\n            self.tasks.insert((entry.deadline, self.first), entry);\n",
     "            self.push(entry);\n", TESTS + ["--test", "s17_s19_executor"]),
    ("overload: a handle to nothing comes alive", "src/scheduler/handle.rs",
     "            || self.key.generation == 0 // a clone of a handle to no task\n", "", TESTS + ["--lib", "handle"]),
    ("overload: a clock that panics takes a claimed task along", "src/engine/run.rs",
     "caught(|| self.now()).map_err(|panic| self.hooks.report(panic)).ok()", "Some(self.now())",
     TESTS + ["--test", "overload", "clock"]),
    ("overload: two panics in one drop", "src/engine/slots/holder.rs",
     "let first = caught(|| drop(closure));", "let first = caught(|| drop((closure, executor)));\n        let executor: Option<()> = None;",
     TESTS + ["--test", "overload", "panic_in_drop"]),
    ("overload: a waker's panic comes out of a schedule", "src/time/parking.rs",
     "quietly(|| waker.wake_by_ref());", "waker.wake_by_ref();", TESTS + ["--test", "overload", "waker"]),
    ("trace: a series stays in its span", "src/observe/trace.rs",
     "parent: None, \"tickwheel.run\"", "\"tickwheel.run\"", TESTS + ["--all-features", "--test", "ecosystem"]),
    ("metrics: a report tells all anew", "src/observe/metrics.rs",
     "        self.last = stats;\n", "        drop(stats);\n", TESTS + ["--all-features", "--test", "ecosystem"]),
    # The trait, and who is told
    ("schedule: a box without the name of its closure", "src/scheduler/schedule_trait.rs",
     "self.schedule_series_named(type_name::<F>(), initial, period, series)",
     "self.schedule_series(initial, period, series)", tests("schedule_forms")),
    ("schedule: a pointer that loses the name", "src/scheduler/schedule_trait.rs",
     "(**self).schedule_task_named(name, delay, task)", "{ let _ = name; (**self).schedule_task(delay, task) }",
     tests("schedule_forms")),
    ("panics: a report that panics itself", "src/observe/mod.rs",
     "_ = io::stderr().write_all(line.as_bytes());", "eprint!(\"{line}\");", tests("panic_names")),
    ("panics: a line for what has no name", "src/observe/mod.rs",
     "None if name.is_some() => quietly(|| panic.print()),", "None => quietly(|| panic.print()),",
     tests("panic_names")),
    ("panics: the name does not reach the hook", "src/observe/mod.rs",
     "        let panic = TaskPanic { name, payload };\n", "        let panic = TaskPanic { name: None, payload };\n",
     tests("panic_names")),
    ("an observer behind a pointer that hears less", "src/observe/mod.rs",
     "                (**self).took_in(tasks);\n", "                let _ = tasks;\n", tests("api_table")),
    # Orderings, by the models
    ("ordering: exchange, no Acquire", "src/engine/slots/state.rs",
     "self.0.exchange_in_order(seen.0, next.0).map(drop)",
     "self.0.compare_exchange(seen.0, next.0, Ordering::Release, Ordering::Relaxed).map(drop)", models("holders")),
    ("ordering: exchange, no Release", "src/engine/slots/state.rs",
     "self.0.exchange_in_order(seen.0, next.0).map(drop)",
     "self.0.compare_exchange(seen.0, next.0, Ordering::Acquire, Ordering::Relaxed).map(drop)", models("holders")),
    ("ordering: exchange, not in order", "src/engine/slots/state.rs",
     "self.0.exchange_in_order(seen.0, next.0).map(drop)",
     "self.0.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).map(drop)", models("holders")),
    ("ordering: end, no Release", "src/engine/slots/state.rs",
     "self.0.store(freed.0, Ordering::Release);", "self.0.store(freed.0, Ordering::Relaxed);", models("holders")),
    ("ordering: look at a word, no Acquire", "src/engine/slots/state.rs",
     "Word(self.0.load(Ordering::Acquire))", "Word(self.0.load(Ordering::Relaxed))", models("holders")),
    ("ordering: the clone makes the handle shared", "src/scheduler/handle.rs",
     "self.is_shared.store_in_order(true);", "self.is_shared.store(true, Ordering::Release);", models("holders")),
    ("ordering: the cancel's look at shared", "src/scheduler/handle.rs",
     "self.is_shared.load_in_order()", "self.is_shared.load(Ordering::Acquire)", models("holders")),
    ("ordering: a worker's task is over, no Release", "src/job.rs",
     "            owner.hook().catch_named(rest.name(), || drop(rest));\n        }\n        self.is_over.store(true, Ordering::Release);",
     "            owner.hook().catch_named(rest.name(), || drop(rest));\n        }\n        self.is_over.store(true, Ordering::Relaxed);",
     models("workers")),
    ("ordering: a look at whether it is over, no Acquire", "src/job.rs",
     "self.is_over.load(Ordering::Acquire)", "self.is_over.load(Ordering::Relaxed)", models("workers")),
    ("ordering: publication, no Release", "src/engine/intake/lane.rs",
     "self.lane.published.swap_in_order(self.published + 1)",
     "self.lane.published.swap(self.published + 1, Ordering::Relaxed)", models("lanes")),
    ("ordering: publication, not in order", "src/engine/intake/lane.rs",
     "self.lane.published.swap_in_order(self.published + 1)",
     "self.lane.published.swap(self.published + 1, Ordering::AcqRel)", models("lanes")),
    ("ordering: the reader's look at a lane", "src/engine/intake/lane.rs",
     "self.lane.published.load_in_order()", "self.lane.published.load(Ordering::Acquire)", models("lanes")),
    ("ordering: close of a lane, no Acquire", "src/engine/intake/lane.rs",
     "fetch_or(CLOSED, Ordering::Acquire)", "fetch_or(CLOSED, Ordering::Relaxed)", models("lanes")),
    ("ordering: the writer's look at listed", "src/engine/intake/lane.rs",
     "self.lane.listed.load_in_order()", "self.lane.listed.load(Ordering::Acquire)", models("lanes")),
    ("ordering: the reader unlists", "src/engine/intake/reader.rs",
     "reader.lane.listed.store_in_order(false);", "reader.lane.listed.store(false, Ordering::Release);",
     models("lanes")),
    ("ordering: a push on the ready list, no Release", "src/engine/intake/lane.rs",
     "self.signals.ready.exchange_in_order(head, self.number as u64 + 1)",
     "self.signals.ready.compare_exchange(head, self.number as u64 + 1, Ordering::Relaxed, Ordering::Relaxed)",
     models("lanes")),
    ("ordering: a push on the ready list, not in order", "src/engine/intake/lane.rs",
     "self.signals.ready.exchange_in_order(head, self.number as u64 + 1)",
     "self.signals.ready.compare_exchange(head, self.number as u64 + 1, Ordering::AcqRel, Ordering::Relaxed)",
     models("whole")),
    ("ordering: the ready list is taken, no Acquire", "src/engine/intake/reader.rs",
     "intake.signals.ready.swap(0, Ordering::Acquire)", "intake.signals.ready.swap(0, Ordering::Relaxed)",
     models("lanes")),
    ("ordering: the last look at the ready list", "src/engine/intake/mod.rs",
     "self.ready.load_in_order()", "self.ready.load(Ordering::Acquire)", models("whole")),
    ("ordering: a cut that cuts nothing", "src/engine/intake/mod.rs",
     "Order::Count(count) => count.load(Ordering::Acquire),",
     "Order::Count(count) => count.load(Ordering::Acquire).max(u64::MAX),", models("lanes")),
    ("ordering: the bell is armed", "src/time/parking.rs",
     "self.threshold.store_in_order(threshold.0.max(AWAKE + 1));",
     "self.threshold.store(threshold.0.max(AWAKE + 1), Ordering::Release);", models("sleep")),
    ("ordering: the producer's look at the bell", "src/time/parking.rs",
     """self.threshold.load_in_order();
        if threshold != AWAKE && (due""",
     """self.threshold.load(Ordering::Acquire);
        if threshold != AWAKE && (due""", models("sleep")),
    ("ordering: closing is said, not in order", "src/engine/shared.rs",
     "self.is_closing.store_in_order(true);", "self.is_closing.store(true, Ordering::SeqCst);", models("ends")),
    ("ordering: a series ends, not in order", "src/engine/run.rs",
     "        let key = claimed.end_in_order();\n        if self.is_closing.load_in_order() {",
     "        let key = claimed.end();\n        if self.is_closing() {", models("ends")),
    ("ordering: a series is given back for a run that it has made", "src/engine/slots/state.rs",
     "(word.turn() == turn).then(|| word.in_phase(Phase::Returned))",
     "turn.is_none_or(|_| true).then(|| word.in_phase(Phase::Returned))", models("ends")),
    ("ordering: closing is said after the bell", "src/engine/shared.rs",
     """        self.is_closing.store_in_order(true);
        self.bell.ring_if_asleep();
        self.bell.ring();
""", """        self.bell.ring_if_asleep();
        self.bell.ring();
        self.is_closing.store(true, Ordering::SeqCst);
""", models("whole")),
]


def run(command):
    is_loom = "--lib" in command and "--release" in command
    environment = dict(os.environ, CARGO_TARGET_DIR=str(BUILD / ("loom" if is_loom else "tests")),
                       TICKWHEEL_IMPATIENT="1")
    if is_loom:
        environment |= {"RUSTFLAGS": "--cfg loom", "LOOM_MAX_PREEMPTIONS": "2", "RUST_BACKTRACE": "0"}
    started = subprocess.Popen(command, cwd=COPY, env=environment, text=True, start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        printed, errors = started.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # the tests too, or they would go on
        started.communicate()
        return "a test that hangs"
    if started.returncode == 0:
        return None
    if "\nrunning " not in printed:
        sys.exit(f"no test ran, so perhaps the mutation does not compile:\n{errors[-2000:]}")
    failed = re.findall(r"^test (\S+) \.\.\. FAILED", printed, re.MULTILINE)
    aborted = re.findall(r"^thread '(\S*::\S+)'", errors, re.MULTILINE)[:1]
    return ", ".join(failed[:3] or aborted) or "a test that aborts"


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    shutil.rmtree(COPY, ignore_errors=True)
    skip = shutil.ignore_patterns("target", ".git", "fuzz")
    shutil.copytree(ROOT, COPY, ignore=skip)
    survivors = []
    chosen = [mutation for mutation in MUTATIONS if wanted in mutation[0]]
    for number, (name, file, old, new, command) in enumerate(chosen, 1):
        path = COPY / file
        whole = path.read_text()
        if whole.count(old) != 1:
            sys.exit(f"{name}: {file} holds what is to be replaced {whole.count(old)} times, not once")
        path.write_text(whole.replace(old, new))
        caught = run(command)
        path.write_text(whole)
        print(f"{number:2} of {len(chosen)}  {name:50} {caught or 'SURVIVES'}", flush=True)
        if caught is None:
            survivors.append(name)
    if survivors:
        sys.exit(f"{len(survivors)} survive: {', '.join(survivors)}")
    print("none survives")


if __name__ == "__main__":
    main()
