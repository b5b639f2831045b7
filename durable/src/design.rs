//! How it works inside, and what was tried. This page has no code.
//!
//! A durable timer is a row. Its column `wake` says when a worker looks at it next: the due time while it waits, the time of
//! the next attempt after a failure, the end of the lease while a worker has it, and never when it is dead. So one index, on
//! kind, `wake` and number, serves claims, looks ahead, takeovers and lists, and a claim is one condition: `wake` has come.
//!
//! The wheel has no rows. It has times: a look ahead gives the worker the next two minutes of `wake` times, to a quarter
//! of a millisecond, and they lie in a [`DelayQueue`](tickwheel::delay::DelayQueue) beside the other causes for which the dispatcher
//! wakes. When one comes, the dispatcher claims what is due of that kind, whichever rows these are. So a timer that was moved
//! or cancelled in the meantime leaves nothing behind in other processes but a claim that finds nothing, and a time that is
//! missed costs lateness and never a timer: the next look finds it.
//!
//! A process knows the database's clock only by asking. Each answer bounds how far the clocks are apart, the bounds of
//! several answers are intersected, and the worker waits for the latest instant that is possible. So a claim seldom comes too
//! early, and one that does finds nothing and waits again.
//!
//! Runs are claimed in batches as large as 20 ms of work, so that short handlers do not wait for the database and long ones
//! are not taken away from other workers. Their outcomes are written by one thread, all that have gathered while the last
//! transaction was under way. So the cost of a commit is shared more, the more there is to do.
//!
//! A claim counts no attempt, because a process may die between a claim and the call of a handler. The start is counted, in a
//! transaction of its own before the call, where the count matters: when few attempts are left, when the handler is slow
//! enough that the commit does not, and when a lease has ended without an outcome. A timer of which that is so is suspected,
//! and runs alone.
//!
//! No worker waits for a row that somebody else has locked, but for the row of its own handler's transaction. The first
//! version waited when it extended leases, and an open transaction of a user that held one timer ended the leases of all
//! the others. To pass over a row has a price: a claim may lock, for the length of its own statement, a row that another
//! claim has taken just before. So an outcome that finds its own row locked is tried again after 1, 2, 4 and 8 ms, and then
//! each 100 ms.
//!
//! A call waits for its database on the thread that makes it, or, where that thread is a runtime's and for futures, on one of a
//! few threads that the store has for calls. The first version started a thread for each call inside of a runtime: 13,000
//! calls a second. With two busy cores and a SQLite file, `get` now takes 43,000 to 70,000 a second on threads of the caller's, and
//! 37,000 to 100,000 as a future. A pool that had its threads make all calls would be simpler, and would add two switches of
//! threads to each call of a program that has no runtime.
//!
//! An async handler has no thread of the worker. Its future is dropped when its time is over, and a runtime that drops it ends
//! its run. A handler in a transaction of tokio-postgres has a thread all the same: its connection is its own for so long
//! anyway, and so the statements of a transaction are written once for both clients.
//!
//! A fencing number is the next one of a sequence, and behind it twenty random bits. It was the sequence alone, until a test failed over
//! to a replica that lagged. The replica's sequence does not know of the last claims, so it gave their numbers away again, and the
//! rows that were put in got the numbers of rows that were lost. So the outcome of a run on the lost server ended a run of
//! the new one, of the same timer or of another; and within a worker, which knows its runs by these numbers, one could take the
//! place of another, whose timer then would not run. What would also go up over a failover was left alone. The database's clock may be
//! set back. The number of the server's timeline cannot be read on all servers that speak PostgreSQL. And a counter in a row would be
//! written by each claim, and lost with the others. The random bits cost at most 0.2 us for each timer.
//!
//! A run learns of a cancel from a read that its worker makes twice a second while it has long runs. Two other ways were left alone.
//! A notice of the server would come within milliseconds, but not in a SQLite file, nor through a pooler, nor if notices are set to
//! `never`; so the read would be needed all the same. And leases that are extended each third of a second would be a write for each
//! run. In the process that cancels, the worker asks at once, and its handlers knew after 0.1 to 1 ms. From other processes they knew
//! after 0.15 to 0.5 s, in both databases; the worst case is 0.75 s and the read (`cargo test -p tickwheel-durable --test worker a_cancel
//! -- --nocapture`).
//!
//! A handler that hears so returns, and most return `Ok`. In a first form that counted as done if nobody else had the timer: a worker
//! that was alone, and away from its database for longer than a lease, lost the work that the handler had left undone. Now what a
//! handler returns that has heard so is a failed attempt, and if the timer is gone, it changes nothing. What returns after its
//! time limit has failed, whether the dispatcher or the handler was first.
//!
//! A few threads start all async handlers of a kind, so each takes many at once and writes their starts in one commit. With a
//! commit for each, 1,000 runs that wait for each other were 1,006 commits with PostgreSQL, and with a SQLite file they were all under
//! way after 0.6 to 2.3 s. Now these are 21 commits, and 0.3 to 0.4 s (with other work on the two cores).
//!
//! Several databases are a list, and a store that is alone is a list of one: a call picks its store from the list, and everything
//! below that, the connections, the threads for calls and the worker, is of one store. Two other ways were left alone. A [`Store`](crate::Store)
//! that stands for several would have needed no change above it, but one dispatcher would claim from all of them in turn, and
//! one limit of connections would be for all, so a server that hangs would hold up the others. And a type of its own for several
//! would have had each call twice.
//!
//! The home of a timer is a rendezvous hash over the numbers of the stores. A hash over their addresses would move most timers when a
//! server gets another name. SHA-256 is slower than what hash tables use, some hundred nanoseconds for each store, and every
//! language has it, PostgreSQL too, so that a statement can compute the home. CRC32 and FNV are shorter, but their values for two
//! stores are too much alike, and PostgreSQL has the first from version 18 only.
//!
//! In a first form a timer that was not at its home was always looked for on the other stores. But most calls that find nothing
//! are cancels of what has run, and each would have asked all servers, and failed while one is away. So it is an option.
//!
//! Lists of several stores can be merged only if all are in one order. PostgreSQL sorts texts by the language of the database, and
//! two servers may differ, so lists sort kinds by their bytes. The index may have another order, so the kinds are looked up first, and
//! then each by itself.
//!
//! With 400 timers due within four seconds on three servers, one of which was killed in the middle, those on the others were late by
//! 3.7 ms in the median before and by 2.3 ms after it, and by 27 and 28 ms at most (`TICKWHEEL_ONLY=killed cargo test -p
//! tickwheel-durable --test faults over_three_servers`; a debug build, two cores with other work).
//!
//! What told workers of news was changed twice. A notice for each row of a batch floods the server, and one for the whole
//! batch names the earliest only: the second timer of a batch was a minute late. Now a claim that does not fill up also
//! tells when the next timer of its kind wakes. So each timer leads to the one behind it, and a notice for the first of
//! many is enough.
//!
//! Each worker hears each notice, so with eight workers eight claims came for a timer, at the same moment. Now the workers know each
//! other by a list in an unlogged table, and a hash of the kind, of 20 ms of the database's time and of the worker says whose turn it
//! is (`worker/turns.rs`). The second in that order looks a little later, and the others within a second. A list that is wrong
//! costs claims or milliseconds: so it is written with a look, once a minute, and nobody waits until all know of a change. The
//! server knows before anybody else that a process was killed, because its session ends; the list has the number of that.
//!
//! What a turn is about must be known to all, which is not so for all timers. The next run of a series is known to the worker
//! that has run it, and of a batch the workers are told the first. So a claim that shows a timer which was not expected makes that
//! timer the claimer's, and it tells the others to look, twice a second at most. It did not work to tell them the timer: it
//! had often woken by the time they heard of it, so they took it for a call for help. That call is the other news: a worker
//! that has had no room for 25 ms tells it, and then all claim whatever is due of that kind for a second, as before there were turns. In a
//! first form each full batch was such a call. But the first claims of a worker are for four timers, since it does not know yet how long its
//! handlers take, so every start was one.
//!
//! There are no turns where workers are not told of each timer: with notices that are debounced or never sent, and through a
//! pooler. There each knows of what it has seen itself, and a timer is on time because one of many polls has seen it.
//!
//! A notice has a price: the commit holds a lock of the whole cluster until it is on the disk. So it may be debounced. It is
//! the workers who say when: after eight notices of a kind in a second they look each 10 ms for four seconds, and write into an
//! unlogged table that nobody need tell anything for two. The trigger of each insert reads that, which costs a look into
//! an index. The order matters: they look before they write it, and longer than it holds. A commit that decided at the end of the two
//! seconds, and took one more, is still seen. One that took longer than a second tells at its end, by a deferred trigger. If a
//! worker dies in the meantime, or the server crashes, the others look once a second. A lock or a row of the callers that says
//! "told already" would not do: the one that told may be undone, and the others' timers are not visible yet when it is heard.
//! Such a look reads the first timer of each kind alone, because the claim at its time leads to the next.
//!
//! The functions in SQL are the only text of what a call does, for this crate too. In a first form each had a search path of its
//! own, as functions should; to set it cost 10 us a call and trigger, a third of all that a call did. Conditions of triggers and
//! constraints are read from the catalog by each statement: twelve more comparisons in a condition that was never true cost 12 us.
//! Sequential reads were off in the functions, against plans from when the table was small. Then a look that could not use
//! an index, because a caller's text had another collation, had a price at which the server compiles the plan: 150 ms.
//!
//! A run leaves entries in the index that point at nothing, and until the server removes them, a claim from the front of
//! the index walks over all of them. It can remove none while any transaction is open that is older, be it a report or a dump. So
//! a backlog was worked off at 35,000 a second in the first second and at 6,000 after 250,000 runs. Now a worker remembers for
//! each kind the last timer that it has claimed, its floor, and begins behind that.
//!
//! What comes to stand below a floor would be missed, so four rules bound for how long. A floor stays a second behind the
//! database's clock, which is for transactions that are under way. A worker that hears of an earlier timer lowers its floor to
//! that, which is for timers that are scheduled for the past, or moved there. After a second, or ten times as long as the last
//! claim without a floor took, the next claim has none. So a timer that somebody else had locked as the floor passed, or that was
//! committed late without a notice, waits so long at most while there are others to claim. And a worker that does not know
//! what it has missed, after an error or because another worker stops, forgets its floors. A lease ends later than the claim
//! that gave it, so its end is above the floor of that time, and no claim passes over it unless the row is locked.
//!
//! The ten times bound the cost: with a million entries to walk over, a claim without a floor takes a quarter of a second, and
//! one each second would be a quarter of the throughput. Two other ways were left alone. A second index, of timers that wait,
//! makes claims shorter and each write longer. Updates in place would leave no entries, but `wake` is what the index is about.
//!
//! | 1,000,000 overdue beside as many that are pending, thousand runs a second | first second | slowest whole second | last |
//! | --- | --- | --- | --- |
//! | beside a transaction that is open all the time | 50 | 46 | 57 |
//! | the same, with other work on the two cores | 43 | 30 | 40 |
//! | 300,000 of the first version, beside such a transaction | 34 | 3 | 6 |
//!
//! After 100,000 runs beside such a transaction, a claim of 250 timers read 2,289 pages from the beginning and 259 from its
//! floor, and a look at the first timer 2,034 and 4. What is left is a claim that does not fill up: it also looks for the next timer
//! that waits, and for that walks over the leases of the last half minute, which are ahead of the clock and of any floor.
//!
//! Dead timers wake never, so they are the last ones of their kind in the index, and are listed and requeued from there.
//!
//! `counts` reads the whole table from its first page to its last. The server has a small ring of buffers for that, so it drives
//! nothing else out of its memory. Two ways to spare it the table were tried with a million timers of 600 MB. To have `state` and
//! `due` in the entries of the index on `wake` costs a run nothing: claim and delete took 10 us of the server's time with them and
//! without. Counting from such an index took 125 ms of processor time in place of 305, as long as the server knew that all pages are
//! visible. After one timer in twenty had been moved, it took 4.0 s, and the table 0.5: what has changed is looked up in the table,
//! timer by timer, in the order of the index. A second index, of the timers that are held or dead, made a run 18 % dearer (12 us), and
//! those that wait would still have to be counted. Counters that the statements keep would be a lock that all of them share.
//!
//! A kind that floods made the others late by 40 to 170 ms. Of that, a part was the claim of the flood that was under way, of 250 timers
//! and more, and another part was the next claim of the flood, because kinds were served in the order in which they had become
//! hungry, and all of them before the worker looked what else had woken. The largest part was rare: a claim of one timer that took
//! 110 ms, because the server compiled it. Now the worker takes in what has woken between two claims, serves a kind first that had
//! nothing to do, claims 128 at a time while several kinds have something to claim, and has the compiler off. Claims of 64 or 32 made
//! nobody more punctual: in SQLite each costs a commit, and the others waited for more commits. On two cores with a load
//! of 20 from other programs, in runs that alternated, others were late by 31 to 37 ms on average and 150 to 210 at p99 beside a flood
//! in PostgreSQL before, and by 17 to 22 and 62 to 89 after. With a load of 5, it is 4 to 8 in the median and 9 to 23 at p99, beside
//! 13,000 to 23,000 runs of the flood a second, in both databases (debug builds; `cargo test -p tickwheel-durable --test worker a_flood
//! -- --nocapture`).
//!
//! Limits over all processes are rows of their own, which a claim writes. To count the timers that run would need no rows, and would be
//! wrong: a timer that is cancelled while it runs is gone, and its handler is not. An index on the state would cost each kind something.
//! A row of limits is locked by the claim, and not waited for: a worker that finds it locked claims other kinds, and comes again after
//! 2 ms. In PostgreSQL the claim is a function. As several statements of the client, the lock would last as long as a process
//! is halted; as one statement, it would not see what others have committed before the lock was free, and exceed the limit.
//!
//! A group is the first part of the key. As a column it would be a part of each call and statement in all languages, and
//! its index a cost for those who have none. Without an index, the next timer of a group is found by looking at all that is due before
//! it. So a claim looks at a thousand, and the worker remembers where each group was first passed over, and how far it has looked.
//! It claims from there when the group is free. A first draft claimed from the time at which a timer woke, and so could have run
//! a later timer of a group before an earlier one that had been passed over elsewhere.
//!
//! A PostgreSQL server that has vacuumed the table of timers while it was empty believes that it is, until it has counted the rows again.
//! A claim that looked for what it had locked by its number was then planned as a walk over all rows for each: 110 ms for 128 of 7,000,
//! and 3 ms by the place in the table, `ctid`. What is to be written is still looked for by its number, with one walk over the rows for
//! each batch, and the claims of a kind with limits too.
//!
//! Cron expressions are read by `croner` 4, and zones are `jiff`'s. What the clock shows is one question and when it is set is
//! another, so croner searches on a clock that is never set, and `src/cron/mod.rs` walks along the changes of the zone. croner
//! can do that too, but counts `0 2,14 * * *` as an interval, because it has two hours: in Berlin its run at 02:00 is lost in spring, and
//! comes twice in autumn. And from 3.0.0 to 4.0.2 it ran a daily midnight in London a second time at 02:00 on the day on which the clocks
//! go forward, as its changelog says. Here a slow clock that is read minute by minute says the same as the walk, for 30,000 rules at
//! random in fifteen zones, most of them around a change (`TICKWHEEL_RUNS=30000 cargo test -p tickwheel-durable --lib cron::`).
//!
//! | crate | licence | why, or why not |
//! | --- | --- | --- |
//! | croner 4.0 with jiff | MIT; Unlicense or MIT | seconds, years, `L`, `W`, `#`, names and `@daily`; four releases in three months; adds seventeen packages, of which eleven are for its derives at build time |
//! | croner 3 with chrono and chrono-tz | MIT or Apache-2.0 | the zones are those of the build, so a server needs a new build for each change of a law |
//! | cronexpr 1.5 with jiff | Apache-2.0 | adds five packages; needs Rust 1.88; looks four years ahead, so it finds no 29 February from 2096 on; no seconds, no `@daily` |
//! | jiff-cron 0.3 | MIT or Apache-2.0 | its expressions are seven fields, and not those of a crontab |
//!
//! To read a rule and compute its next time takes 9 to 12 us and 0.4 to 2 us, and 71 us if the next one is a leap day on a Monday
//! (a release build, on a busy machine). So nothing is cached, and a worker sees new data of a zone at the next run. That a rule never
//! comes is found by looking until the year 5000, which takes up to 22 ms, once when it is scheduled.
//!
//! The first time of a series could be computed by the caller's clock. If that is ahead, the first run is missed, and if it
//! is behind, one runs at once that was due before. So the store computes it from the database's time, which costs another question for
//! a series with a cron rule, and none for other timers. In SQL nobody can compute it, and the due time is the caller's.
//!
//! That a run is skipped is an outcome of its claim, and no state: the next time, written with no attempt. So a crash in between
//! claims it again, and it is counted once it is written. The other way, to move the due time in the claim's statement, would need
//! the rule in the database. A series with a rule that is reset to a time that has passed has the time of the call, so its run is not late;
//! one with a period has the time that was given, which is its phase. Of a series with a period, missed runs are skipped as before: a
//! policy would be a column, and `*/5 * * * *` has one.
//!
//! //! SQLite has no queue of those who want to write. They try again after pauses, up to 100 ms, and a worker that works off a backlog leaves
//! the file free for microseconds between two transactions. So a call from another process waited up to 4.7 s. To try
//! again each millisecond helps the crate's own calls. Other clients need the file to be free for half of the time: then 8 tries, which a
//! client makes within 100 ms, succeed all but once in 256 times. A worker does that while it sees that others write, and so
//! is slower only then. On two cores with a load of 30, calls of another process took 8 ms in the median and 55 at p99, and an `INSERT` of
//! another client 8 and 51; with a load of 5, 1.5 and 11, and 2 and 14 to 25 (`cargo test -p tickwheel-durable --test worker
//! another_process -- --nocapture`). With rests that were not counted across the threads of the worker, and no longer than 20 ms, the
//! `INSERT` took 637 ms at p99.
//!
//! The helpers for tests have no store and no worker of their own. A second store, of maps, would be faster, and each promise of the first
//! would have to be kept, and tested, twice. So it is SQLite in memory, whose clock was read in this process anyway. A first draft
//! ran the dispatcher's own loop on a driven scheduler. It looks once a minute and polls once a second, which is 2.6 million polls in
//! a month, and what it does next depends on pauses that are random on purpose. So a test worker has its own loop of twenty lines, which
//! asks the store for the next wake and moves the clock there, and calls what follows, from the claim to the outcome, at the
//! seams of the threads. It claims one timer at a time, for the order, and runs about 3,500 a second in a debug build: three days of a
//! timer each minute took 1.2 to 1.5 s beside other work on two cores (`cargo test -p tickwheel-durable --test worker
//! virtual_time::three -- --nocapture`). While the future of an async handler waits for another thread, its virtual time stands still; in a
//! first form it jumped to the time limit of the run, so that a handler that called the store as a future failed. On a server of
//! PostgreSQL each step of the time would be a call, and a schema whose clock stands still is dangerous if it is not one of tests, so
//! for that there are words alone.
//!
//! PostgreSQL keeps the plan of a prepared statement. A plan that was made for a small table reads all of it, and goes on
//! doing so when the table has grown, until the server next counts the rows, which may take a minute. So with 20,000 rows
//! a finish took 8.6 ms in place of 0.03. A statement that takes long for the rows that it returns is now prepared anew. A
//! limit of 2 ms, whatever the number of rows, was too eager: it made batches plan anew each time, and cost half of the
//! throughput.
//!
//! | backlog of 20,000, in thousand runs a second; 1, 2 and 4 processes | plain handlers | in transactions |
//! | --- | --- | --- |
//! | plans are kept | 30, 22, 14 | 1.0, 1.6, 1.5 |
//! | prepared anew after 2 ms | 22, 32, 33 | 3.7, 3.5, 2.7 |
//! | after 5 ms, and 0.1 ms for each row | 48, 55, 45 | 3.8, 3.9, 3.2 |
//!
//! # The history
//!
//! A row of the history is made by the worker in memory, and goes to the store with the outcome. So a store copies no columns, and the
//! statements of `finish` put in the rows of those runs that they have locked as theirs. A handler in a transaction is another case: the
//! change of `finish` comes before the handler, to know that the run is still the worker's, and the row behind it, when it is known how
//! long the handler took. A completion is executed by somebody else's client. In a first plan the finisher was to write its row
//! afterwards, which is a second transaction, and a process that dies in between would leave a run without a row. Now the statement puts
//! in the row itself. It contains numbers alone, and takes the texts from the timer's row, so nothing needs quotes.
//!
//! The primary key is the kind, the start and the fencing number. It says which attempt a row is, lets a repeated row be left out, has the
//! oldest rows of a kind at its begin and the last at its end, and serves the pace. A number of the row's own would be one more index.
//! The index by key makes a run dearest, since its keys are in no order. It is there because "what became of this one" is what is asked
//! most. Failures are few, so an index of those alone costs the others nothing.
//!
//! | processor time for a timer that is scheduled and runs, 20,000 at a time, in us | PostgreSQL | SQLite |
//! | --- | --- | --- |
//! | before there was a history | 42.1 | 16.0 |
//! | without a history | 41.6 | 15.4 |
//! | with one | 53.7 | 18.8 |
//!
//! These are medians of seven runs that alternated, release builds on two cores with a load of 10 from other programs, the
//! server's time included. The time on the clock said less at that load: the three were not to be told apart.
//!
//! When a timer has died, no column told. It could not be the one who writes the death: workers of version 6 and statements by hand
//! make timers dead too, and those bring timers back that would have to be forgotten. So the keeper that removes what is dead
//! notes when it has first seen it, with the fencing number of that death. A timer that dies again has another number. The column
//! costs nothing to timers that live, and the statements of workers did not change.
//!
//! The keeper is a task on the threads for calls. The finisher has time when nothing is due, and would have been the smallest place, but
//! outcomes wait while it works, and in SQLite so would the file. A batch of the oldest rows begins where the last one has ended, for
//! the same reason as a floor: what was removed stays in the way while any old transaction is open.
//!
//! `pace` reads the time first and sends it as a value. With the time in the statement, the server guessed a third of the table to be in
//! any span, and read all of it for the last second.
