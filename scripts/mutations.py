#!/usr/bin/env python3
"""Plants bugs, one at a time, and shows which tests catch each. None may survive.

    scripts/mutations.py            all of them, some forty minutes on two cores
    scripts/mutations.py drift      those whose name has that in it

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
    ("late in exact mode", "src/engine/coming_back.rs",
     "            Precision::Exact => Some(deadline),", "            Precision::Exact => Some(Moment(deadline.0 + 1_000_000)),",
     tests("s01_s07_time", "driver_model")),
    ("early at the head of the front", "src/front.rs",
     "let is_due = self.ready.front().is_some_and(|entry| entry.deadline <= now.0);",
     "let is_due = self.ready.front().is_some();", tests("s01_s07_time")),
    ("late by a tick", "src/tick.rs",
     "Moment(tick.0.saturating_mul(self.tick.get()))", "Moment((tick.0 + 1).saturating_mul(self.tick.get()))",
     tests("s01_s07_time", "driver_model")),
    ("equal deadlines in any order", "src/front.rs",
     "        self.count += 1;\n", "", TESTS + ["--lib"] + ["--test", "s01_s07_time"]),
    ("order lost between far and near", "src/wheel/buckets.rs",
     "half - present == 1 && !self.far.has(half)", "half - present == 1", tests("wheel_model")),
    ("a far half-turn forgotten", "src/wheel/far.rs",
     "            *self.entry(half) = later;\n", "            drop(later);\n", tests("wheel_model")),
    ("lost ring", "src/hub.rs",
     "self.bell.ring_if_earlier(entry.moment(), entry.is_due_now() || is_much);",
     "let _ = has_a_backlog;", tests("s01_s07_time")),
    ("no ring for what is due now", "src/hub.rs",
     "entry.is_due_now() || is_much", "is_much", tests("s01_s07_time")),
    ("the last look believes the flow", "src/engine/coming_back.rs",
     "!self.inlet.is_behind(cut) && earliest >= threshold",
     "{ let _ = (earliest, threshold); !self.inlet.is_behind(cut) }", tests("storms", "s01_s07_time")),
    ("the last look leaves out what is left in the lanes", "src/engine/coming_back.rs",
     "self.inlet.each_left(|record| earliest = earliest.min(needed_at(Entry::from(record))));",
     "earliest = earliest.min(earliest);",
     tests("s01_s07_time")),
    ("handed over before all is in", "src/engine.rs",
     "        if !self.hub.has_a_thread && self.inlet.is_behind(cut) {", "        if false && self.inlet.is_behind(cut) {",
     tests("s01_s07_time", "driver_model")),
    ("a sweep that goes on in blocks that are others now", "src/wheel/stale.rs",
     "            self.sweep.position = Position::START;\n", "", TESTS + ["--lib"]),
    # Cancel
    ("a claim that takes nothing", "src/task/state.rs",
     "self.step(generation, from, Phase::Running)", "self.step(generation, from, from)",
     tests("s08_s11_cancel", "s12_s16_repeating")),
    ("leaked closure", "src/handle.rs",
     "body.discard().for_each(|panic| hub::report(self.hub, panic)); // S9", "std::mem::forget(body);", tests("s08_s11_cancel")),
    ("a closure dropped twice", "src/task/closure.rs",
     "let mut this = ManuallyDrop::new(self);\n        let run_once", "let mut this = self;\n        let run_once", TESTS + ["--lib"]),
    ("reused generation", "src/task/state.rs",
     "self.generation().wrapping_add(1)", "self.generation()", tests("s08_s11_cancel")),
    ("generations begin anew after a trim", "src/task/directory.rs",
     "given_back(block_of(slots.start)).fetch_max(newest, Ordering::Relaxed);", "let _ = newest;",
     tests("memory")),
    ("a page given back with a task in it", "src/task/depot.rs",
     "let is_free = self.pages[group.clone()].iter().all(|slots| *slots == u64::MAX);",
     "let is_free = self.pages[group.clone()].iter().all(|slots| *slots != 0);", tests("memory")),
    ("a cancel that nobody counts", "src/hub/registry.rs",
     "let counted = seat::with_seat_of(hub, |seat| seat.count_cancel(frees_a_place));",
     "let counted = seat::with_seat_of(hub, |_| None::<Arc<crate::parking::Doorbell>>);",
     tests("s25_s27_bounds_and_sight", "s08_s11_cancel")),
    # Repeating
    ("drift", "src/repeat.rs",
     "let next = planned.after_nanos(period);", "let next = ended.after_nanos(period);",
     TESTS + ["--lib"] + ["--test", "s12_s16_repeating"]),
    ("a skip too many", "src/repeat.rs",
     "(overdue / period + 1)", "(overdue / period + 2)", TESTS + ["--lib"]),
    ("a series that does not hear its cancel", "src/task/state.rs",
     "self.step(generation, Phase::Running, Phase::Pending).is_some()",
     "{ let word = self.load(); self.0.store(word.in_phase(Phase::Pending).0, Ordering::Release); true }",
     tests("s12_s16_repeating", "s08_s11_cancel")),
    ("a panic that does not end the series", "src/hub/run.rs",
     "            _ => Some(task),\n        };", "            Err(_) if repeats => self.rearm(task, due).err(),\n            _ => Some(task),\n        };",
     tests("s12_s16_repeating")),
    ("an end that looks like a cancel", "src/task/state.rs",
     "self.step(generation, Phase::Running, Phase::Ending)", "self.step(generation, Phase::Running, Phase::Doomed)",
     tests("s12_s16_repeating", "driver_model")),
    # Executors
    ("a rejected task is lost", "src/engine/hand_over.rs",
     "            outbox.refused(&refused, self.now, first_pause);\n", "            outbox.refused(&[], self.now, first_pause);\n",
     tests("s17_s19_executor")),
    ("half a lot", "src/executor/thread_pool.rs",
     "self.taken.fetch_add(1, Ordering::Relaxed)", "self.taken.fetch_add(2, Ordering::Relaxed)",
     tests("s17_s19_executor", "storms")),
    ("a pool that wakes nobody else", "src/executor/thread_pool.rs",
     "        if queue.idle > 0 {\n            drop(queue);\n            self.work.notify_one();\n        } else if",
     "        if queue.idle > 0 {\n            drop(queue);\n        } else if", tests("s17_s19_executor", "storms")),
    # Shutdown
    ("what the intake held is lost at a close", "src/intake.rs",
     "        self.open = (0..self.lanes.len()).collect();\n", "        self.open.clear();\n",
     TESTS + ["--lib", "intake::"]),
    ("the refused are lost at a close", "src/engine/ending.rs",
     "        self.outboxes.drain_lines(&mut entries);\n", "", tests("s17_s19_executor", "driver_model")),
    ("a lane that does not close", "src/intake/seat.rs",
     "self.published.fetch_or(CLOSED, Ordering::Acquire) & !CLOSED",
     "self.published.load(Ordering::Acquire)", tests("s20_s24_shutdown", "storms")),
    ("leftovers in any order", "src/engine/ending.rs",
     "        entries.sort_by_key(|entry| entry.moment());\n", "",
     tests("s20_s24_shutdown", "driver_model")),
    # Bounds and sight
    ("one place too many", "src/limit.rs", "(used < self.places)", "(used <= self.places)",
     TESTS + ["--lib"] + ["--test", "s25_s27_bounds_and_sight"]),
    ("a place that is never free again", "src/intake/seat.rs",
     "            limit.leave();\n", "            let _ = limit;\n", tests("s25_s27_bounds_and_sight")),
    ("lateness off by far", "src/stats.rs",
     "let doubling = nanos.ilog2() - STEPS_BITS;", "let doubling = nanos.ilog2() - STEPS_BITS + 1;",
     TESTS + ["--lib"] + ["--test", "s25_s27_bounds_and_sight"]),
    # Workers
    ("rx: a drain rests after the lock is free", "src/rx/strand.rs",
     "            state.has_drain = !hands.is_drained();\n",
     "            drop(state);\n            self.state().has_drain = !hands.is_drained();\n", models("workers")),
    ("rx: a series is for a moment nowhere", "src/rx/strand.rs",
     "        drop(hands);\n        if is_due {",
     "        drop(state);\n        drop(hands);\n        let mut state = self.state();\n        if is_due {",
     models("workers")),
    ("rx: every task brings a drain", "src/rx/strand.rs",
     "        if had_one {\n            return;", "        if had_one && !had_one {\n            return;",
     models("workers")),
    ("rx: a refused drain is lost", "src/rx/drain.rs",
     "if let Some(pause) = next_pause(&strand) {", "if let Some(pause) = next_pause(&strand).filter(|_| false) {",
     models("workers")),
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
    ("pool: a thread that ends leaves work behind", "src/pool/crew.rs",
     "if has_begun && !crew.queue.is_empty()", "if has_begun && crew.queue.is_empty()", tests("pool")),
    ("pool: the core ends too", "src/pool/crew.rs",
     "if count.counted <= self.staffing.core || is_needed", "if is_needed", tests("pool")),
    ("deadlock: a pool is full when one thread waits", "src/deadlock.rs",
     "in_pool.len() < by.limit", "in_pool.is_empty()", tests("pool", "future")),
    ("deadlock: a task that runs already could run elsewhere", "src/deadlock.rs",
     "if runs_it.is_empty() && by.is_none_or", "if by.is_none_or", TESTS + ["--lib", "deadlock::"]),
    ("deadlock: block_on gives up though others could wake it", "src/deadlock.rs",
     "clones == 2 + 2 * timers", "clones >= 2 + 2 * timers", tests("future")),
    ("rx: dispose forgets what was taken up", "src/rx/strand.rs",
     "[std::mem::take(&mut *hands), ", "[Queue::default(), ", tests("rx_worker")),
    ("rx: delays go through the executor", "src/rx/worker.rs",
     "scheduler.with_executor(Inline)", "scheduler.clone()", tests("rx_worker")),
    ("rx: a batch of a million", "src/rx/drain.rs",
     "const BATCH: usize = 64;", "const BATCH: usize = 1 << 20;", tests("rx_worker")),
    ("rx: the drain recurses on inline", "src/rx/drain.rs",
     "if below == Arc::as_ptr(&strand).addr() {", "if below == 1 {", tests("rx_worker")),
    ("rx: a cancelled delay stays in the wheel", "src/rx/strand.rs",
     "return timer.into_iter().for_each(|timer| _ = timer.cancel());", "return drop(timer);",
     tests("rx_worker")),
    ("rx: a timer of an earlier wait", "src/rx/delayed.rs",
     "room.ticket == ticket", "room.ticket >= ticket", TESTS + ["--lib"]),
    ("rx: what has left keeps its number", "src/rx/queue.rs",
     "        self.first += self.taken as u64;\n", "", TESTS + ["--lib"]),
    ("rx: pending forgets who has gone", "src/rx/strand.rs",
     "        self.started.store(self.started.load(Ordering::Relaxed) - 1, Ordering::Relaxed);\n"
     "        let Spot::Queued(number) = job.place().get() else { return };\n",
     "        let Spot::Queued(number) = job.place().get() else { return };\n"
     "        self.started.store(self.started.load(Ordering::Relaxed) - 1, Ordering::Relaxed);\n",
     tests("rx_worker")),
    ("rx: a disposal overtakes an arrival", "src/rx/strand.rs",
     "        if strand.is_disposed() {\n", "        if false && strand.is_disposed() {\n", models("workers")),
    ("rx: spans of a stranger's subscriber", "src/rx/spans.rs",
     "                    subscriber.exit(id);\n                }", "                }",
     ["cargo", "test", "--no-fail-fast", "--features", "tracing", "--test", "rx_others"]),
    ("rx: a context that stays", "src/rx/context.rs",
     "        drop(self.capture.replace(before));\n", "        drop(before);\n", tests("rx_others")),
    # The message loop
    ("loop: a post wakes nobody", "src/message_loop/inbox.rs",
     "        if !inbox.can_wait(deadline) {", "        if inbox.can_wait(deadline) {", models("loops")),
    ("loop: it rests after the lock is free", "src/message_loop/inbox.rs",
     "        if rests {\n            inbox.rest = Rest::Resting(until);",
     "        if rests {\n            drop(inbox);\n            inbox = self.inbox();\n            inbox.rest = Rest::Resting(until);", models("loops")),
    ("loop: it rests on news", "src/message_loop/inbox.rs",
     "inbox.immediate.is_empty() && !self.has_news();", "inbox.immediate.is_empty();", models("loops")),
    ("loop: the pump waits longer than was said", "src/message_loop/agenda.rs",
     "        self.shared.found_husks(queues.trim_delayed());\n        if self.shared",
     "        if self.shared", tests("message_loop", "message_loop_hosts")),
    ("loop: a run in between silences the waker", "src/message_loop/inbox.rs",
     "        self.inbox().rest = Rest::Unattended;", "        self.inbox().rest = Rest::Awake;", tests("message_loop_hosts")),
    ("loop: a leaked loop lives for ever", "src/message_loop/bound.rs",
     "impl Drop for Bound {\n    fn drop(&mut self) {\n        self.0.close();",
     "impl Drop for Bound {\n    fn drop(&mut self) {", tests("message_loop_threads")),
    ("loop: what the last look brought is forgotten", "src/message_loop/turns.rs",
     "        if self.has_work() {\n            return Verdict::GoOn;", "        if false {\n            return Verdict::GoOn;",
     models("loops")),
    ("loop: the pump falls asleep over a ring", "src/message_loop/pump.rs",
     "self.state.compare_exchange(SILENT, ASLEEP, success, failure).is_ok()",
     "{ _ = (success, failure); self.state.swap(ASLEEP, Ordering::Relaxed); true }", models("loops")),
    ("loop: a handle's quit is not told", "src/message_loop/run_loop.rs",
     "        self.leave.now.store(true, Ordering::Relaxed);\n        self.shared.tell();",
     "        self.leave.now.store(true, Ordering::Relaxed);", models("loops")),
    ("loop: early", "src/message_loop/agenda.rs",
     "        deadline <= self.recently.get()\n", "        deadline <= self.recently.get() + std::time::Duration::from_nanos(1)\n",
     tests("message_loop")),
    ("loop: equal deadlines in any order", "src/message_loop/queues.rs",
     "(other.deadline, other.sequence).cmp(&(self.deadline, self.sequence))",
     "(other.deadline, self.sequence).cmp(&(self.deadline, other.sequence))", tests("message_loop")),
    ("loop: delayed tasks wait for the queue to be empty", "src/message_loop/agenda.rs",
     "        if self.shared.has_news() {", "        if false && self.shared.has_news() {", tests("message_loop")),
    ("loop: it wakes itself", "src/message_loop/inbox.rs",
     "            Rest::Awake => false,\n", "            Rest::Awake => true,\n", tests("message_loop_hosts")),
    ("loop: what does not nest is forgotten", "src/message_loop/queues.rs",
     "if !is_nested && !self.put_by.is_empty() {", "if is_nested && !self.put_by.is_empty() {", tests("message_loop")),
    ("loop: a quit from elsewhere starts what is delayed", "src/message_loop/ending.rs",
     "End::Open | End::WhenIdle => Delayed::WhenDue,",
     "End::Open | End::WhenIdle | End::Drained => Delayed::WhenDue,", tests("message_loop")),
    ("loop: an idle phase without an end", "src/message_loop/idle.rs",
     "if self.has_run.replace(true) {", "if self.has_run.get() {", tests("message_loop", "message_loop_hosts")),
    ("loop: a reply is dropped where its task was", "src/message_loop/reply.rs",
     "            self.home.send_home(Box::new(reply));\n", "            drop(reply);\n", tests("message_loop_threads")),
    ("loop: cancelled tasks stay until their time", "src/message_loop/inbox.rs",
     "            self.sweep_inbox();\n", "", tests("memory")),
    ("loop: tables of a peak stay", "src/message_loop/agenda.rs",
     "            queues.give_back();\n", "", tests("memory")),
    ("loop: a series outlives its loop", "src/message_loop/turns.rs",
     "Ran::Again(_) if self.is_closed.get() =>", "Ran::Again(_) if false =>", tests("message_loop")),
    ("loop: handlers go on after an end", "src/message_loop/turns.rs",
     "|| !self.is_to_leave_now())", "|| true)", tests("message_loop")),
    ("loop: a dropped thread starts nothing more", "src/message_loop/loop_thread.rs",
     "self.runner.quit_after_posts();", "self.runner.quit();", tests("message_loop_threads")),
    ("loop: a loop that is gone keeps handlers", "src/message_loop/turns.rs",
     "            self.remove_idle_handler(key);\n", "", tests("message_loop")),
    ("loop: a quit safely moves on", "src/message_loop/ending.rs",
     "        if !is_again {", "        if !is_again || is_again {", TESTS + ["--lib"]),
    ("each of a row of cancelled timeouts wakes the thread", "src/engine.rs",
     "self.no_later_than(taken.earliest, next, now),", "self.no_later_than(Moment::NEVER, next, now),", tests("s01_s07_time")),
    # Futures
    ("future: one that has rung counts as pending", "src/alarm.rs",
     "        holder::word(self.key).is_some_and(|word| word.generation() == self.key.generation) // L1",
     "        holder::word(self.key).is_some()",
     TESTS + ["--test", "future", "s1_"]),
    ("future: the last handle ends its scheduler before its alarm", "src/future/sleep.rs",
     """    set: Option<Set>,
    scheduler: Scheduler,
""", """    scheduler: Scheduler,
    set: Option<Set>,
""", tests("future")),
    ("future: a weak handle is a strong one", "src/scheduler/weak.rs",
     "WeakScheduler { face: Arc::downgrade(&self.face), own: self.own.clone() }",
     "std::mem::forget(self.clone());\n        WeakScheduler { face: Arc::downgrade(&self.face), own: self.own.clone() }",
     tests("s20_s24_shutdown")),
    ("future: sleepers are counted after the end is told", "src/engine/ending.rs",
     "        let mut wakers = self.hub.take_wakers(",
     "        self.hub.end.fulfil(Vec::new());\n        let mut wakers = self.hub.take_wakers(", tests("future")),
    ("future: an end wakes nobody", "src/engine/ending.rs",
     "        self.hub.wake(&mut wakers); // they find it closed\n",
     "        drop(wakers);\n", tests("future")),
    ("future: wakers are leftovers", "src/engine/ending.rs",
     "partition(|entry| entry.runner() != Runner::TickThread)", "partition(|_| true)", tests("future")),
    ("future: an executor gets the wakers", "src/hub.rs",
     "            _ if T::IS_WAKER => Runner::TickThread,\n", "", TESTS + ["--test", "future", "the_tick_thread_wakes"]),
    ("future: a waker passes a task that came before it", "src/engine/hand_over.rs",
     "                    self.flush(&taker);\n                    self.let_go", "                    self.let_go", tests("future")),
    ("future: a row of wakers goes on into the tasks", "src/front.rs",
     "        self.peek().filter(|next| next.runner() == Runner::TickThread)?;\n", "", tests("future")),
    ("future: a row of wakers goes on into the future", "src/front.rs",
     """?;
        self.pop(now)
""", """?;
        self.pop(Moment::NEVER)
""", tests("future")),
    ("future: wakers count as no share of a turn", "src/engine/hand_over.rs",
     "left -= self.wake(entry, now, left.min(BATCH - 1))", "drop(self.wake(entry, now, BATCH - 1))", tests("future")),
    ("future: a row of wakers is as long as a turn", "src/engine/hand_over.rs",
     "left.min(BATCH - 1)", "left", tests("future")),
    ("future: a clock that panics takes a waker along", "src/hub/run.rs",
     "caught(|| self.recently()).unwrap_or_else(", "Ok::<Moment, Payload>(self.recently()).unwrap_or_else(", tests("future")),
    ("future: an alarm that is dropped is not called off", "src/alarm.rs",
     "impl Drop for Alarm {\n    fn drop(&mut self) {", "impl Alarm {\n    #[allow(dead_code)]\n    fn not_dropped(&mut self) {",
     tests("future")),
    ("future: another waker is not taken", "src/future/sleep.rs",
     "                if set.alarm.will_wake(waker) {", "                if set.alarm.is_pending() || set.alarm.will_wake(waker) {",
     tests("future")),
    ("future: every poll sets a new alarm", "src/alarm.rs",
     "        self.target == Target::of(waker) // L2", "        self.target == Target::of(waker) && false", tests("future")),
    ("future: ready before its time at the end", "src/future/sleep.rs",
     "                if self.is_elapsed() {", "                if self.is_elapsed() || self.scheduler.is_closed() {",
     tests("future")),
    ("future: brought forward, and nobody told", "src/future/sleep.rs",
     "            return; // U2", "            return;\n        }\n        if self.deadline > Instant::now() {\n            return;",
     tests("future")),
    ("future: put off, and set anew each time", "src/future/sleep.rs",
     "set.at <= deadline)", "set.at == deadline)", tests("future")),
    ("future: the time is asked before the future", "src/future/timeout.rs",
     "        if let Poll::Ready(output) = future.poll(context) {",
     "        if sleep.is_elapsed() {\n            return Poll::Ready(Err(Elapsed { reason: None }));\n        }\n        if let Poll::Ready(output) = future.poll(context) {",
     tests("future")),
    ("future: a call that will not be made tells nobody", "src/future/call.rs",
     "        resolve(self.0, Err(JoinError::Cancelled));", "        let _ = &self.0;", tests("future")),
    ("future: a call keeps its panic to itself", "src/future/call.rs",
     "                resume_unwind(Box::new(message)); // to the scheduler, which counts and reports it",
     "                drop(message);", tests("future")),
    ("future: a panicking waker takes the others along", "src/hub/run.rs",
     "caught(|| wakers.by_ref().for_each(Waker::wake))", "Ok::<(), Payload>(wakers.by_ref().for_each(Waker::wake))",
     tests("future")),
    ("future: the drift of an interval adds up", "src/future/interval.rs",
     "period.next_run(due, self.sleep.scheduler().now())", "period.next_run(self.sleep.scheduler().now(), self.sleep.scheduler().now())",
     tests("future")),
    ("future: a stale entry of a slot that was used again", "src/front.rs",
     "self.key().slot == other.key().slot && self.generation > other.generation",
     "self.key().slot == other.key().slot || self.generation > other.generation", tests("driver_model", "s01_s07_time")),
    ("future: an entry that came late by another lane hides a live one", "src/front.rs",
     "&& self.generation > other.generation", "&& self.generation != other.generation", TESTS + ["--lib", "front"]),
    ("future: a reading that lies ahead holds a lane up", "src/hub.rs",
     "let now = Moment(self.intake.reading_of_last_turn());", "let now = self.timeline.moment(read);", tests("future")),
    ("lane: an old stamp passes the others", "src/intake/lane.rs",
     "        record.stamp = self.stamp;\n", "", TESTS + ["--lib", "intake"]),
    ("lane: a turn takes what is after its cut", "src/intake.rs",
     "            return lanes[only].take_before(cut, most, take);", "            return lanes[only].take_before(u64::MAX, most, take);",
     TESTS + ["--lib", "intake"]),
    ("lane: a merge that does not stop at the other lane", "src/intake.rs",
     "lane.take_before(cut.min(others), most - taken, &mut take)", "lane.take_before(cut.max(others), most - taken, &mut take)",
     TESTS + ["--lib", "intake"]),
    ("lane: a turn that takes all", "src/intake.rs",
     "lane.take_before(cut.min(others), most - taken, &mut take)", "lane.take_before(cut.min(others), usize::MAX, &mut take)",
     TESTS + ["--lib", "intake"]),
    ("lane: a seat is unlisted while it is on the list", "src/intake/lane.rs",
     "        self.seen = self.seat.published.load_in_order() & !CLOSED;", "        self.seat.unlist();\n        self.seen = self.seat.published.load_in_order() & !CLOSED;",
     models("lanes")),
    ("lane: nobody is held back", "src/backpressure.rs",
     "        ahead > allowed\n", "        ahead > allowed && ahead == u64::MAX\n", TESTS + ["--lib", "backpressure"]),
    ("lane: a consumer that stands still holds for ever", "src/backpressure.rs",
     "            if now - began >= LONGEST {\n                break;\n            }\n", "", TESTS + ["--lib", "backpressure"]),
    ("overload: blocks are never counted as emptied", "src/intake/gate.rs",
     "self.emptied.store(emptied, Ordering::Relaxed);", "let _ = emptied;", TESTS + ["--lib", "intake"]),
    ("overload: alarms take no new stamps", "src/intake.rs",
     "self.last_cut.load(Ordering::Relaxed) // any turn's will do", "0", TESTS + ["--lib", "intake"]),
    ("overload: no producer waits for the executor", "src/hub.rs",
     "            executor.map_or(&self.backlog, |own| own.backlog()).hold_back(goes_on);", "            let _ = executor.map(|_| goes_on());",
     TESTS + ["--test", "s17_s19_executor", "s19_"]),
    ("overload: a great half-turn is brought near when it begins", "src/wheel/buckets.rs",
     "if len < GREAT || half", "if len < usize::MAX || half", TESTS + ["--lib", "wheel"]),
    ("overload: a task comes back to the executor of the batch", "src/engine/hand_over.rs",
     "entries.push((word.executor(), Entry::again(due, word), for_good));", "entries.push((taker.number(), Entry::again(due, word), for_good));",
     TESTS + ["--test", "overload", "comes_back"]),
    ("overload: what one executor refuses stands in the way of all", "src/engine/hand_over.rs",
     "                _ if is_refusing => self.outboxes.of(&taker).line_up(entry),\n", "", tests("s17_s19_executor")),
    ("overload: an executor is asked again at once, for ever", "src/engine/outbox.rs",
     "        self.pause = self.pause.max(first_pause);\n        self.again_at", "        self.pause = 0;\n        self.again_at",
     TESTS + ["--test", "overload", "s07_s30", "--test", "s17_s19_executor"]),
    ("overload: a refusal for good is asked again", "src/engine/outbox.rs",
     "        self.is_refused_for_good = true;\n", "", TESTS + ["--lib", "outbox"]),
    ("overload: one that is refused again loses its place", "src/engine/outbox.rs",
     "refused.iter().rev().for_each(|entry| self.line.put_back(*entry));", "refused.iter().for_each(|entry| self.line.push(*entry));",
     TESTS + ["--test", "s17_s19_executor"]),
    ("overload: a handle to nothing comes alive", "src/handle.rs",
     "            || self.key.generation == 0 // a clone of a handle to nothing\n", "", TESTS + ["--lib", "handle"]),
    ("overload: the one run of a leftover can be prevented while it goes on", "src/hub/run.rs",
     "            true => self.run_last(task),", "            true => self.run_series(task, due, frees),", tests("driver_model")),
    ("overload: a clock that panics takes a claimed task along", "src/hub/run.rs",
     "        caught(|| self.recently()).unwrap_or_else(|panic| {", "        Ok::<Moment, Payload>(self.recently()).unwrap_or_else(|panic| {",
     TESTS + ["--test", "overload", "clock"]),
    ("overload: two panics in one drop", "src/task/holder.rs",
     "        if self.executor.is_none() {", "        if self.executor.is_none() || self.executor.is_some() {",
     TESTS + ["--test", "overload", "panic_in_drop"]),
    ("overload: a waker's panic comes out of a schedule", "src/parking.rs",
     "quietly(|| waker.wake_by_ref());", "waker.wake_by_ref();", TESTS + ["--test", "overload", "waker"]),
    ("overload: nobody trims after the last one", "src/task/trim.rs",
     "if !TRIMS_AT_THE_END || ENGINES", "if TRIMS_AT_THE_END || ENGINES", TESTS + ["--test", "overload", "after_a_peak"]),
    ("trace: a series stays in its span", "src/trace/on.rs",
     "parent: None, \"tickwheel.run\"", "\"tickwheel.run\"", TESTS + ["--all-features", "--test", "ecosystem"]),
    ("metrics: a report tells all anew", "src/metrics.rs",
     "        self.last = stats;\n", "        drop(stats);\n", TESTS + ["--all-features", "--test", "ecosystem"]),
    # Orderings, by the models
    ("ordering: exchange, no Acquire", "src/task/state.rs",
     "self.0.exchange_in_order(seen.0, next.0).map(drop)",
     "self.0.compare_exchange(seen.0, next.0, Ordering::Release, Ordering::Relaxed).map(drop)", models("holders")),
    ("ordering: exchange, no Release", "src/task/state.rs",
     "self.0.exchange_in_order(seen.0, next.0).map(drop)",
     "self.0.compare_exchange(seen.0, next.0, Ordering::Acquire, Ordering::Relaxed).map(drop)", models("holders")),
    ("ordering: exchange, not in order", "src/task/state.rs",
     "self.0.exchange_in_order(seen.0, next.0).map(drop)",
     "self.0.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).map(drop)", models("holders")),
    ("ordering: end, no Release", "src/task/state.rs",
     "self.0.store(freed.0, Ordering::Release);", "self.0.store(freed.0, Ordering::Relaxed);", models("holders")),
    ("ordering: look at a word, no Acquire", "src/task/state.rs",
     "Word(self.0.load(Ordering::Acquire))", "Word(self.0.load(Ordering::Relaxed))", models("holders")),
    ("ordering: the clone makes the handle shared", "src/handle.rs",
     "self.shared.store_in_order(true);", "self.shared.store(true, Ordering::Release);", models("holders")),
    ("ordering: the cancel's look at shared", "src/handle.rs",
     "self.shared.load_in_order()", "self.shared.load(Ordering::Acquire)", models("holders")),
    ("ordering: a worker's task is over, no Release", "src/job.rs",
     "        owner.hook().catch(|| drop(rest));\n        self.is_over.store(true, Ordering::Release);",
     "        owner.hook().catch(|| drop(rest));\n        self.is_over.store(true, Ordering::Relaxed);",
     models("workers")),
    ("ordering: a look at whether it is over, no Acquire", "src/job.rs",
     "self.is_over.load(Ordering::Acquire)", "self.is_over.load(Ordering::Relaxed)", models("workers")),
    ("ordering: publication, no Release", "src/intake/lane.rs",
     "self.seat.published.swap_in_order(self.published + 1)",
     "self.seat.published.swap(self.published + 1, Ordering::Relaxed)", models("lanes")),
    ("ordering: publication, not in order", "src/intake/lane.rs",
     "self.seat.published.swap_in_order(self.published + 1)",
     "self.seat.published.swap(self.published + 1, Ordering::AcqRel)", models("lanes")),
    ("ordering: the reader's look at a lane", "src/intake/lane.rs",
     "self.seat.published.load_in_order()", "self.seat.published.load(Ordering::Acquire)", models("lanes")),
    ("ordering: close of a lane, no Acquire", "src/intake/seat.rs",
     "fetch_or(CLOSED, Ordering::Acquire)", "fetch_or(CLOSED, Ordering::Relaxed)", models("lanes")),
    ("ordering: the writer's look at listed", "src/intake/seat.rs",
     "self.listed.load_in_order()", "self.listed.load(Ordering::Acquire)", models("lanes")),
    ("ordering: the reader unlists", "src/intake/seat.rs",
     "self.listed.store_in_order(false);", "self.listed.store(false, Ordering::Release);", models("lanes")),
    ("ordering: a push on the ready list, no Release", "src/intake/gate.rs",
     "self.head.exchange_in_order(head, seat.number as u64 + 1)",
     "self.head.compare_exchange(head, seat.number as u64 + 1, Ordering::Relaxed, Ordering::Relaxed)", models("lanes")),
    ("ordering: a push on the ready list, not in order", "src/intake/gate.rs",
     "self.head.exchange_in_order(head, seat.number as u64 + 1)",
     "self.head.compare_exchange(head, seat.number as u64 + 1, Ordering::AcqRel, Ordering::Relaxed)", models("whole")),
    ("ordering: the ready list is taken, no Acquire", "src/intake/gate.rs",
     "self.head.swap(0, Ordering::Acquire)", "self.head.swap(0, Ordering::Relaxed)", models("lanes")),
    ("ordering: the last look at the ready list", "src/intake/gate.rs",
     "self.head.load_in_order()", "self.head.load(Ordering::Acquire)", models("whole")),
    ("ordering: a cut that cuts nothing", "src/intake.rs",
     "count.load(Ordering::Acquire), // INTAKE-3", "count.load(Ordering::Acquire).max(u64::MAX),", models("lanes")),
    ("ordering: the bell is armed", "src/parking.rs",
     "self.threshold.store_in_order(threshold.0.max(AWAKE + 1));",
     "self.threshold.store(threshold.0.max(AWAKE + 1), Ordering::Release);", models("sleep")),
    ("ordering: the producer's look at the bell", "src/parking.rs",
     """self.threshold.load_in_order();
        if threshold != AWAKE && (due""",
     """self.threshold.load(Ordering::Acquire);
        if threshold != AWAKE && (due""", models("sleep")),
    ("ordering: closing is said after the bell", "src/hub.rs",
     """        self.is_closing.store(true, Ordering::SeqCst); // before the bell: see `Doorbell`, P1
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
    failed = re.findall(r"^test (\S+) \.\.\. FAILED", printed, re.MULTILINE)
    broken = re.findall(r"^error(?:\[E\d+\])?: (?!test failed|\d+ target)(.*)", errors, re.MULTILINE)
    if not failed and broken:
        sys.exit(f"the mutation does not compile: {broken[0]}")
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
