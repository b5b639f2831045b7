//! The states of a task holder, on one atomic word: the [`AtomicRef`].
//!
//! In Akka's scheduler a handle is an `AtomicReference` to the present holder, swapped for each
//! repetition and set to null by a cancel. Here the reference is the holder's own word: it says
//! *which* task lives in the holder (the generation) and *where that task stands* (the phase), and
//! each repetition swaps it from running back to pending, unless a cancel came in between.
//!
//! ```text
//!              fill                       claim                      end
//!   Free(g) ----------> Pending(g) ----------------> Running(g) ----------> Free(g+1)
//!                        |   ^  |                     |     |                   ^
//!                        |   |  +-- give back --+     |     | cancel, or close  |
//!                        |   +------ rearm -----|-----+     v a series          |
//!                        |                      v    Doomed(g), Ending(g) - end +
//!                        |                  Returned(g) -- claim -> Running(g)  |
//!                        +---- cancel ----------+--- cancel --------------------+
//!
//!   Pending(g), Returned(g) --hold--> Held(g) --put back--> as it was, or Pending at another scheduler
//!   Returned(g), a series --claim for its only run--> Ending(g)
//! ```
//!
//! | phase | the task | who may leave it, and how |
//! | --- | --- | --- |
//! | `Free` | none | the owner of the free slot: `fill` |
//! | `Pending` | waits: in the intake, the wheel, or an executor's queue | anybody: `claim` to run or to drop it, `cancel`; the engine at its end: `give back` |
//! | `Running` | runs | the runner: `end` of a one-shot, `rearm` or `close` of a series; anybody, for a series: `cancel` |
//! | `Doomed` | a series in its last run, because of a cancel | the runner: `end` |
//! | `Ending` | a series after its last run, of itself, or in the one run that it has as a leftover | the runner: `end` |
//! | `Returned` | is among the leftovers of a close | anybody: `claim`, `cancel`, `hold` |
//! | `Held` | waits, and one thread has its body in hand for a moment: to read its name, or to move it to another scheduler | that thread: `put back`; all others wait for it |
//!
//! - WORD-1 Every transition out of a phase that several may leave is a compare-exchange on the whole
//!   word, generation included, so exactly one wins (S8) and a stale handle never does (S10).
//! - WORD-2 Whoever wins `claim`, or `cancel` from `Pending` or `Returned`, alone owns the body from
//!   then on. `Doomed` and `Ending` leave the body with the runner.
//! - WORD-3 The generation grows by one each time the holder becomes free, and never wraps: a slot
//!   whose generations are used up is not used again.
//! - WORD-4 Every exchange is Acquire and Release, so that who cancels a series between two runs sees what
//!   the last run wrote. `end` is Release, and every look from outside Acquire, so that who finds a
//!   task done sees what it did. `fill` is Release for the same reason: who finds the slot filled again knows
//!   by that that the task before is done. A slot goes from owner to owner under the depot's lock, or within
//!   one thread.
//! - WORD-5 No user code runs while a task is `Held`, and it is held for some instructions only. So a thread that
//!   meets it spins, and then finds it where it was.
//!
//! The word also carries what seldom changes within a generation: the kind of repetition, the number of an executor of
//! the task's own, and whether the task has [moved](super::moved) to another scheduler. Each `rearm` flips the
//! [`Turn`], so an entry of an earlier run can be told from one of the next. And the word remembers, for the last four
//! generations, whether they ended by a cancel: see [`Word::ended_by_cancel`].

use crate::platform::sync::{AtomicU64, ExchangeInOrder, InOrder, Ordering, in_models, spin};
use crate::time::repeat::Kind;
use crate::wheel::entry::Turn;

/// Where a task stands; see the table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Free,
    Pending,
    Running,
    Doomed,
    Ending,
    /// Beside `Pending`, as [`Word::is_pending`] looks at both.
    Held,
    Returned,
}

/// One value of the word. From the low end: phase 3 bits, kind 3, past outcomes 4, executor 20, moved 1, turn 1,
/// generation 32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u64);

const KIND_AT: u32 = 3;
const PAST_AT: u32 = 6;
const EXECUTOR_AT: u32 = 10;
const MOVED: u64 = 1 << 30;
const ODD: u64 = 1 << 31;
const GENERATION_AT: u32 = 32;
const LOW_3: u64 = 0b111;

/// How many past outcomes a word remembers.
pub(crate) const PAST_BITS: u32 = 4;
const PAST_MASK: u64 = (1 << PAST_BITS) - 1;

/// One more than the highest number of an executor that a word can carry.
pub(crate) const EXECUTORS: u32 = 1 << 20;

impl Word {
    /// A pending task in a slot with these past outcomes.
    pub(crate) fn pending(generation: u32, past: u8, kind: Kind, executor: u32) -> Word {
        debug_assert!(executor < EXECUTORS);
        Word(
            u64::from(generation) << GENERATION_AT
                | u64::from(executor) << EXECUTOR_AT
                | u64::from(past) << PAST_AT
                | (kind as u64) << KIND_AT
                | Phase::Pending as u64,
        )
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> GENERATION_AT) as u32
    }

    pub(crate) fn phase(self) -> Phase {
        match self.0 & LOW_3 {
            0 => Phase::Free,
            1 => Phase::Pending,
            2 => Phase::Running,
            3 => Phase::Doomed,
            4 => Phase::Ending,
            5 => Phase::Held,
            _ => Phase::Returned,
        }
    }

    #[inline]
    fn is_in(self, phase: Phase) -> bool {
        self.0 & LOW_3 == phase as u64
    }

    /// Whether the task repeats.
    #[inline]
    pub(crate) fn is_series(self) -> bool {
        self.0 >> KIND_AT & LOW_3 != Kind::Once as u64
    }

    pub(crate) fn kind(self) -> Kind {
        match (self.0 >> KIND_AT) & LOW_3 {
            0 => Kind::Once,
            1 => Kind::RateBurst,
            2 => Kind::RateSkip,
            3 => Kind::RateDelay,
            _ => Kind::Gap,
        }
    }

    /// The number of the task's own executor; 0 for the scheduler's.
    pub(crate) fn executor(self) -> u32 {
        (self.0 >> EXECUTOR_AT) as u32 & (EXECUTORS - 1)
    }

    /// Whether the task belongs to another scheduler than the one that gave out its handle.
    pub(crate) fn has_moved(self) -> bool {
        self.0 & MOVED != 0
    }

    /// Which run of a series is next, or in progress; `None` for a task that does not repeat.
    pub(crate) fn turn(self) -> Option<Turn> {
        let turn = if self.0 & ODD == 0 { Turn::Even } else { Turn::Odd };
        self.is_series().then_some(turn)
    }

    /// Whether the task is still to run, at its scheduler. One that is held is: `Returned` ones are in no wheel.
    pub(crate) fn is_pending(self) -> bool {
        const LOW_2: u64 = 0b11;
        const { assert!(Phase::Held as u64 & LOW_2 == Phase::Pending as u64) };
        self.0 & LOW_2 == Phase::Pending as u64
    }

    pub(crate) fn is_running(self) -> bool {
        self.is_in(Phase::Running)
    }

    /// The same task, pending at another scheduler, on the executor of this number there.
    pub(crate) fn moved_to(self, executor: u32) -> Word {
        let word = self.in_phase(Phase::Pending);
        let without = word.0 & !(u64::from(EXECUTORS - 1) << EXECUTOR_AT);
        Word(without | u64::from(executor) << EXECUTOR_AT | MOVED)
    }

    /// The same task, a leftover again, with this executor.
    pub(crate) fn returned(self, executor: u32) -> Word {
        self.moved_to(executor).in_phase(Phase::Returned)
    }

    /// The outcomes of past generations, the latest in the lowest bit.
    pub(crate) fn past(self) -> u8 {
        ((self.0 >> PAST_AT) & PAST_MASK) as u8
    }

    /// The same task in another phase.
    fn in_phase(self, phase: Phase) -> Word {
        Word(self.0 & !LOW_3 | phase as u64)
    }

    /// The holder free for the next task, with this outcome remembered.
    fn freed(self, cancelled: bool) -> Word {
        let past = (u64::from(self.past()) << 1 | u64::from(cancelled)) & PAST_MASK;
        let generation = u64::from(self.generation().wrapping_add(1));
        Word(generation << GENERATION_AT | past << PAST_AT)
    }

    /// Whether this word's holder was left by a cancel in a generation that is over; `None` when
    /// the generation is not over, or so long ago that the word no longer knows.
    pub(crate) fn ended_by_cancel(self, generation: u32) -> Option<bool> {
        let age = self.generation().wrapping_sub(generation);
        let remembered = (1..=PAST_BITS).contains(&age);
        remembered.then(|| self.past() >> (age - 1) & 1 == 1)
    }
}

/// How a cancel came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelOutcome {
    /// It prevented the run; the canceller owns the body, and the word is as it now stands.
    Won { was: Phase, next_generation: u32 },
    /// It prevented all further runs of a series that is in a run.
    Doomed,
    /// The task had run, was running, or was cancelled before.
    Lost,
}

/// The word of a holder: which task, and where it stands.
pub(crate) struct AtomicRef(AtomicU64);

impl AtomicRef {
    /// The word of a holder that never held a task. No task has generation 0.
    #[cfg(test)]
    pub(crate) fn new() -> AtomicRef {
        AtomicRef(AtomicU64::new(0))
    }

    in_models! {
        pub(crate) fn wipe(&self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// A write that changes nothing, if the word is zero, as in a page that was never used. Relaxed: nothing is told
    /// by it. (A compiler makes a load of `fetch_or(0)`.)
    pub(crate) fn touch(&self) {
        let _ = self.0.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The word of a free holder, for the owner of its slot; `None` while it is all zero.
    pub(crate) fn vacant(&self) -> Option<Word> {
        // Relaxed: the slot came with what its last owner has written.
        let word = Word(self.0.load(Ordering::Relaxed));
        (word.0 != 0).then_some(word)
    }

    /// Acquire: pairs with the Release of whoever made the transition that is seen; WORD-4.
    pub(crate) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// The same, and in one order with every `cancel`; HANDLE-1 in `handle.rs`.
    pub(crate) fn load_in_order(&self) -> Word {
        Word(self.0.load_in_order())
    }

    /// `fill`: a task is there. Only the owner of the free slot may call it, so a store does; stale
    /// handles compare the generation and leave it alone.
    pub(crate) fn fill(&self, word: Word) {
        self.0.store(word.0, Ordering::Release); // WORD-4
    }

    /// `claim`: from `from` to running. The winner owns the body; WORD-1, WORD-2.
    pub(crate) fn claim(&self, generation: u32, from: Phase) -> Option<Word> {
        self.step(generation, from, Phase::Running)
    }

    /// `claim` of a pending task by an entry that a scheduler has. `is_there` tells whether a task that has
    /// [moved](super::moved) belongs to that scheduler now: an executor of the old one may still have an entry.
    #[inline]
    pub(crate) fn claim_there(
        &self,
        generation: u32,
        is_there: impl FnOnce() -> bool,
    ) -> Option<Word> {
        let claimed = self.exchange_from(generation, Phase::Pending, |word| {
            (!word.has_moved()).then(|| word.in_phase(Phase::Running))
        });
        claimed.or_else(|| self.claim_moved(generation, is_there))
    }

    /// The task is held during the look, so that it cannot move meanwhile.
    #[cold]
    fn claim_moved(&self, generation: u32, is_there: impl FnOnce() -> bool) -> Option<Word> {
        let seen = self.load();
        if seen.generation() != generation || !seen.has_moved() {
            return None;
        }
        let word = self.hold(generation, Phase::Pending)?;
        let is_there = is_there();
        let next = if is_there { word.in_phase(Phase::Running) } else { word };
        self.put_back(next);
        is_there.then_some(next)
    }

    /// `claim` of a leftover, for its only run: of a series too, and then no cancel wins any more.
    pub(crate) fn claim_last(&self, generation: u32) -> Option<Word> {
        self.exchange_from(generation, Phase::Returned, |word| {
            Some(word.in_phase(if word.is_series() { Phase::Ending } else { Phase::Running }))
        })
    }

    /// `give back`: from pending to returned, if no other run of a series has come since this turn.
    pub(crate) fn give_back(&self, generation: u32, turn: Option<Turn>) -> Option<Word> {
        self.exchange_from(generation, Phase::Pending, |word| {
            (word.turn() == turn).then(|| word.in_phase(Phase::Returned))
        })
    }

    /// `rearm`: a series waits for its next run, which is the other turn. `None` when it was doomed meanwhile.
    pub(crate) fn rearm(&self, generation: u32) -> Option<Word> {
        self.exchange_from(generation, Phase::Running, |word| {
            Some(Word(word.in_phase(Phase::Pending).0 ^ ODD))
        })
    }

    /// `hold`: from this phase, `Pending` or `Returned`; the word before it. The caller has the body in hand until it
    /// calls [`put_back`](AtomicRef::put_back); WORD-5.
    pub(crate) fn hold(&self, generation: u32, from: Phase) -> Option<Word> {
        self.step(generation, from, Phase::Held).map(|word| word.in_phase(from))
    }

    /// `put back`: nobody else may leave `Held`, so a store does. Release: the next owner of the body sees what was
    /// done to it.
    pub(crate) fn put_back(&self, word: Word) {
        self.0.store(word.0, Ordering::Release);
    }

    /// One transition of a task, while it is in the phase `from`; the word after it.
    fn step(&self, generation: u32, from: Phase, to: Phase) -> Option<Word> {
        self.exchange_from(generation, from, |word| Some(word.in_phase(to)))
    }

    #[inline]
    fn exchange_from(
        &self,
        generation: u32,
        from: Phase,
        to: impl Fn(Word) -> Option<Word>,
    ) -> Option<Word> {
        let mut seen = self.glance();
        loop {
            while seen.generation() == generation && seen.is_in(from) {
                let next = to(seen)?;
                match self.exchange(seen, next) {
                    Ok(()) => return Some(next),
                    Err(now) => seen = now,
                }
            }
            if seen.generation() != generation || !seen.is_in(Phase::Held) {
                return None;
            }
            spin(); // WORD-5
            seen = self.glance();
        }
    }

    /// `close`: the runner ends a series, and from now on no cancel wins. False when a cancel has
    /// doomed it before.
    pub(crate) fn close(&self, generation: u32) -> bool {
        self.step(generation, Phase::Running, Phase::Ending).is_some()
    }

    /// `end`: the runner frees the holder; the generation of the next task there. Nobody else may
    /// leave `Running` of a one-shot, `Doomed` or `Ending`, so a store does. WORD-4.
    pub(crate) fn end(&self, word: Word, cancelled: bool) -> u32 {
        let freed = word.freed(cancelled);
        self.0.store(freed.0, Ordering::Release);
        freed.generation()
    }

    /// `cancel`: WORD-1, WORD-2. `SeqCst` because handles that share their outcome rely on one order of
    /// cancels and of their own loads.
    /// `has_moved` is called before the exchange of a task that has [moved](super::moved).
    #[inline]
    pub(crate) fn cancel(&self, generation: u32, mut has_moved: impl FnMut()) -> CancelOutcome {
        let mut seen = self.glance();
        loop {
            if seen.generation() != generation {
                return CancelOutcome::Lost;
            }
            if seen.has_moved() {
                has_moved();
            }
            let (next, outcome) = match seen.phase() {
                was @ (Phase::Pending | Phase::Returned) => {
                    let freed = seen.freed(true);
                    let next_generation = freed.generation();
                    (freed, CancelOutcome::Won { was, next_generation })
                }
                Phase::Running if seen.is_series() => {
                    (seen.in_phase(Phase::Doomed), CancelOutcome::Doomed)
                }
                Phase::Held => {
                    spin(); // WORD-5
                    seen = self.glance();
                    continue;
                }
                _ => return CancelOutcome::Lost,
            };
            match self.exchange(seen, next) {
                Ok(()) => return outcome,
                Err(now) => seen = now,
            }
        }
    }

    /// What an exchange starts from. Relaxed: if it is not the present, the exchange fails and tells.
    fn glance(&self) -> Word {
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Acquire, to see the body; Release, so that what the leaver did to the body is seen by the
    /// next owner (WORD-4); `SeqCst` for a cancel's part in HANDLE-1. On x86 and Arm it is the same instruction.
    /// Relaxed when it fails: nothing is done then, but to look again.
    fn exchange(&self, seen: Word, next: Word) -> Result<(), Word> {
        self.0.exchange_in_order(seen.0, next.0).map(drop).map_err(Word)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn filled(kind: Kind) -> AtomicRef {
        let reference = AtomicRef::new();
        reference.fill(Word::pending(7, 0, kind, 0));
        reference
    }

    fn cancel(task: &AtomicRef, generation: u32) -> CancelOutcome {
        task.cancel(generation, || unreachable!("it has not moved"))
    }

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let word = Word::pending(u32::MAX - 1, 0b1010, Kind::Gap, EXECUTORS - 1);
        assert_eq!(word.generation(), u32::MAX - 1);
        assert_eq!(word.past(), 0b1010);
        assert_eq!((word.kind(), word.executor()), (Kind::Gap, EXECUTORS - 1));
        assert_eq!(word.in_phase(Phase::Returned).phase(), Phase::Returned);
    }

    #[test]
    fn s8_one_cancel_wins_and_a_run_prevents_it() {
        let task = filled(Kind::Once);
        assert!(matches!(cancel(&task, 7), CancelOutcome::Won { was: Phase::Pending, .. }));
        assert_eq!(cancel(&task, 7), CancelOutcome::Lost);

        let task = filled(Kind::Once);
        let word = task.claim(7, Phase::Pending).expect("pending");
        assert_eq!(cancel(&task, 7), CancelOutcome::Lost, "a one-shot that runs");
        assert_eq!(task.end(word, false), 8);
    }

    #[test]
    fn s10_a_stale_generation_changes_nothing() {
        let task = filled(Kind::Once);
        assert_eq!(cancel(&task, 6), CancelOutcome::Lost);
        assert!(task.claim(8, Phase::Pending).is_none());
        assert!(task.claim(7, Phase::Pending).is_some());
    }

    #[test]
    fn s16_a_series_that_is_cancelled_in_its_run_does_not_come_back() {
        let task = filled(Kind::RateBurst);
        let word = task.claim(7, Phase::Pending).expect("pending");
        assert_eq!(cancel(&task, 7), CancelOutcome::Doomed);
        assert_eq!(cancel(&task, 7), CancelOutcome::Lost, "once");
        assert!(task.rearm(7).is_none() && !task.close(7));
        assert_eq!(task.end(word, true), 8);
        assert_eq!(task.vacant().map(Word::past), Some(1));
    }

    #[test]
    fn s29_a_task_that_has_moved_says_so_and_keeps_the_rest() {
        let task = filled(Kind::Gap);
        assert!(task.give_back(7, Some(Turn::Odd)).is_none(), "another run");
        assert!(task.give_back(7, Some(Turn::Even)).is_some());
        let held = task.hold(7, Phase::Returned).expect("returned");
        task.put_back(held.moved_to(EXECUTORS - 1));
        let word = task.load();
        assert_eq!(
            (word.phase(), word.kind(), word.executor()),
            (Phase::Pending, Kind::Gap, EXECUTORS - 1)
        );
        assert!(word.has_moved() && word.generation() == 7 && word.past() == 0);
        let mut told = false;
        assert!(matches!(task.cancel(7, || told = true), CancelOutcome::Won { .. }) && told);
        assert!(!task.vacant().expect("used").has_moved(), "the next task has not");
    }

    #[test]
    fn s31_a_task_that_is_held_is_still_to_run() {
        let task = filled(Kind::Once);
        let word = task.hold(7, Phase::Pending).expect("pending");
        assert!(task.load().is_pending() && task.hold(6, Phase::Pending).is_none());
        task.put_back(word);
        assert!(task.load() == word && task.claim(7, Phase::Pending).is_some());
    }

    #[test]
    fn s29_each_run_of_a_series_has_another_turn() {
        let task = filled(Kind::Gap);
        let mut turns = Vec::new();
        for _ in 0..3 {
            turns.push(task.claim(7, Phase::Pending).expect("pending").turn());
            assert!(task.rearm(7).is_some_and(Word::is_pending));
        }
        assert_eq!(turns, [Some(Turn::Even), Some(Turn::Odd), Some(Turn::Even)]);
        assert_eq!(filled(Kind::Once).load().turn(), None);
    }

    #[test]
    fn a_word_remembers_its_last_outcomes() {
        let mut word = Word::pending(1, 0, Kind::Once, 0);
        for cancelled in [true, false, true, false] {
            word = word.freed(cancelled);
        }
        let told: Vec<_> = (0..=5).map(|generation| word.ended_by_cancel(generation)).collect();
        assert_eq!(told, [None, Some(true), Some(false), Some(true), Some(false), None]);
    }
}
