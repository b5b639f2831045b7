// In the documentation, the README's link to the other crate leads to that crate's page: the first definition counts.
//! [tickwheel]: tickwheel
#![doc = include_str!("../README.md")]
//!
//! ## On time
//!
//! A worker looks two minutes ahead once a minute, puts what it finds into the timer wheel, and claims a timer at the
//! moment at which it is due. PostgreSQL tells it of timers that are scheduled for sooner than that, when their transaction
//! commits, however long that took. So timers are late by the time of a claim, and not by an interval of polling, and an
//! idle worker asks the database once a minute.
//! On two cores, with commits that wait for the disk, timers were late by 1.2 ms in the median and 2.4 ms at p99 with
//! SQLite, and by 0.9 and 2.0 ms with PostgreSQL; a loop that polls each second was late by half a second. SQLite ran
//! 78,000 timers a second and PostgreSQL 50,000 (`benches/queues`). The workers' scheduler was made with
//! [`Precision::Exact`](tickwheel::Precision::Exact). The global one, with ticks of a millisecond, adds up to one.
//!
//! A claim begins behind what the worker has claimed before, so a backlog is worked off at the same pace from its begin to its
//! end, also while a report or a dump keeps the server from removing what is done. For that, a timer that comes to stand
//! before others which have run may wait for a second: one that another transaction had locked in the meantime, and, if commits
//! tell nothing, one whose transaction took longer than a second. The second is more where there is more to look through: ten times
//! as long as such a look takes.
//!
//! All due times are by the database's clock. A worker reads no wall clock of its own, so it sends nothing early on a
//! machine whose clock is wrong. (The clock of a SQLite file is that of its machine.)
//!
//! ## How often a timer runs
//!
//! A claim gives the timer to one worker, for as long as a lease lasts. The worker extends the lease while the handler
//! runs. If the worker dies, hangs, or loses the database, the lease ends, and another worker takes over.
//!
//! - **At least once.** A handler of [`WorkerBuilder::handle`] runs again if the worker dies after the handler's work, and
//!   before that was written down. So the work must not mind: recognise what was done by the key, or give
//!   [`Run::fence`] to the system that you write to, and let it refuse lower numbers.
//! - **Exactly once.** A handler of `WorkerBuilder::handle_in_postgres`, `handle_in_tokio_postgres` or `handle_in_sqlite`
//!   gets a transaction of the timers' own database. Its writes and the end of the timer are committed together, or not at all.
//!   With any other client for PostgreSQL, such as sqlx, a handler gets the same by [`Run::completion`].
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! # use std::time::Duration;
//! use tickwheel_durable::{Existing, NewTimer, Table, Timers, WorkerBuilder, sqlite};
//!
//! fn at_least_once(worker: WorkerBuilder) -> WorkerBuilder {
//!     worker.handle("mail", |run| {
//!         // The mail server knows the key, and drops a second mail with it.
//!         println!("to the mail server: {} {:?}", run.key(), run.payload());
//!         Ok(())
//!     })
//! }
//!
//! fn exactly_once(worker: WorkerBuilder) -> WorkerBuilder {
//!     worker.handle_in_sqlite("cancel order", |run, transaction| {
//!         transaction.execute("UPDATE orders SET state = 'cancelled' WHERE id = ?1", [run.key()])?;
//!         let tell = NewTimer::new("mail", run.key(), Duration::ZERO).payload("cancelled");
//!         sqlite::within(transaction).schedule(&[tell], Existing::Keep)?;
//!         Ok(())
//!     })
//! }
//! # drop(exactly_once(at_least_once(Timers::open("sqlite::memory:")?.worker())));
//! # }
//! # Ok::<(), tickwheel_durable::Error>(())
//! ```
//!
//! A timer that was replaced while it ran may run beside the old run, which nothing can stop. The fencing numbers tell them
//! apart.
//!
//! ## A failover
//!
//! When a replica takes the place of a PostgreSQL server, the timers are as the replica has them. A replica that follows
//! asynchronously may lag: what was committed in its last moments is lost, whoever committed it. A timer whose end is lost runs
//! again, which is what "at least once" means; in a transaction, the effect of its run is lost with its end, and there is one
//! again. Workers need an address that leads to the new server, and go on. An outcome that comes from before the failover counts only
//! if the replica has the claim.
//!
//! Fencing numbers may go back then by as many as were lost, but no number is given away twice. If another system refuses lower
//! ones, have them go ahead after a failover: `SELECT setval('tickwheel_fence', nextval('tickwheel_fence') + 1000000)`. With
//! `synchronous_standby_names` nothing is lost, and nothing goes back.
//!
//! ## Attempts and deaths
//!
//! An attempt is a start of the handler. A handler that fails is called again after a gap that grows ([`Retry`]). After the
//! last attempt the timer is [`Dead`](State::Dead): it stays in the table with its error, to be listed, requeued or
//! cancelled. [`WorkerBuilder::on_dead`] is told.
//!
//! | to | |
//! | --- | --- |
//! | set the number of attempts, the gaps and their jitter, of a kind or of all | [`WorkerBuilder::retry`] |
//! | say when the next attempt is to be | [`Failure::retry_after`] |
//! | give up at once, from the handler | [`Failure::for_good`] |
//! | give up after certain errors, of a kind or of all | [`WorkerBuilder::give_up_if`], [`Failure::is`] |
//! | come again later, without a failure and without an attempt less | [`Failure::snooze`] |
//! | bound how long an attempt may take | [`WorkerBuilder::time_limit`], [`NewTimer::time_limit`] |
//! | stop a handler whose timer was cancelled or replaced | [`Run::cancelled`], [`Run::is_current`] |
//!
//! A handler that exceeds its time limit has failed, and its timer is tried again. Its thread is replaced, or its future dropped, and
//! [`WorkerBuilder::on_error`] gets [`Error::TimeLimit`] at once, as an alarm. A handler whose transaction or runtime is not there within
//! the limit is not called, and no attempt is spent. The hook gets [`Error::NotCalled`], and the run comes again.
//!
//! A cancel or a replacement reaches a run within a second, from whatever process it comes. A worker asks each half second which of its
//! runs are still its own, if some have lasted for a quarter of a second. For a thousand of them that took the worker 5 ms of
//! processor time a second with PostgreSQL, and the server 1 ms; with SQLite 9 ms (a debug build, with the extension of the leases;
//! `TICKWHEEL_LONG_RUNS=1000 TICKWHEEL_ONLY=to_ask cargo test -p tickwheel-durable --test worker to_ask -- --nocapture`).
//!
//! [`Worker::stop`] gives back at once what has not started, whatever the handlers do that have. Another worker started the first of it
//! 12 to 18 ms later, and with SQLite in another process within a second, which is how often that asks ([`WorkerBuilder::poll_every`]).
//! So stop the worker when the process is told to end: the services above do so at Ctrl-C and at SIGTERM.
//!
//! A process that is killed costs those timers an attempt whose handlers were running. What it had claimed and not started
//! goes back uncounted when the lease ends. For that the start is written down before the handler is called: another
//! commit. A process that is killed between the two has used up an attempt of a handler that was not called; that takes well
//! under a millisecond, or as long as a runtime needs to poll an async one. The start of a handler that takes less than five
//! milliseconds on average, of a timer with more than ten attempts left, is written with its outcome instead. If the process dies first,
//! that attempt is not counted.
//!
//! When a worker in PostgreSQL writes that it tries a timer again, or when the next run of a series is, it tells nobody, because it waits for
//! that itself. If its process is killed in the meantime, the others learn of it with their next look or claim of the kind: that run is a
//! minute late at most.
//!
//! A timer whose lease has ended may be what killed its process. So it runs alone in its worker the next time, for up to five
//! seconds, and takes no neighbour along if it does so again. In the end its attempts are used up, and it is dead.
//!
//! Each run of a series has its own attempts. A run that fails is tried again in its series, as long as the next run is
//! not due. Then, and when its attempts are used up, it leaves the series: it becomes a timer of its own, whose key is that
//! of the series, `@`, and the time at which it was due in milliseconds since 1970. A key that is too long for that loses its end, and
//! has `#` and the number of the series there. By that key it waits for its next attempt, or is dead. The series goes on with its next
//! run. So a later attempt may run beside the next run of the series. The same goes for a run that snoozes.
//!
//! A series has a period ([`NewTimer::every`]), a cron rule in a time zone (`NewTimer::cron`, with the feature `cron`), or a rule of
//! yours ([`WorkerBuilder::rules`]). A service puts in those of its code at each start, with [`Timers::keep_series`], which leaves what
//! has not changed. The page `cron` has an example, and tells what happens when clocks are set and what becomes of runs that were
//! missed.
//!
//! The other direction works too: [`sqlite::within`] and [`postgres::within`] schedule inside a transaction of yours, so
//! that an order and its timer are written together or not at all.
//!
//! ## Sight
//!
//! `tickwheel-durable-web` is a page for operators, on which timers are also cancelled, moved and requeued.
//!
//! [`Timers::counts`] counts by kind and state, and tells the lag: how long ago the oldest was due that is not done.
//! [`Worker::stats`] tells what one worker has done, [`Worker::is_running`] and [`Worker::stop_reason`] whether it still runs
//! and why not. [`WorkerBuilder::on_dead`] is told of timers that die, and [`WorkerBuilder::on_error`] of everything that
//! a worker cannot do. With the feature `tracing`, each run is in a span `tickwheel.timer` with its kind, key, attempt,
//! fencing number and trace, and failures are events. So are a database that cannot be reached or used, and its return. With the
//! feature `metrics` there are these, with the label `kind` where there is one:
//!
//! | metric | what it is |
//! | --- | --- |
//! | `tickwheel_durable_claims_total` | claims, with those that found nothing |
//! | `tickwheel_durable_runs_total` | attempts that were started |
//! | `tickwheel_durable_failed_total` | attempts that failed |
//! | `tickwheel_durable_dead_total` | timers that died |
//! | `tickwheel_durable_snoozed_total` | attempts that were put off |
//! | `tickwheel_durable_timed_out_total` | attempts that have exceeded their time limit |
//! | `tickwheel_durable_stuck` | a gauge: handlers that have exceeded their time limit and have not returned |
//! | `tickwheel_durable_skipped_total` | runs of series that were left out because they were late |
//! | `tickwheel_durable_errors_total` | errors that were told to [`WorkerBuilder::on_error`], without `kind` |
//! | `tickwheel_durable_lateness_seconds` | a histogram: from the moment at which a timer woke to the start of its handler |
//! | `tickwheel_durable_run_seconds` | a histogram: how long handlers took |
//! | `tickwheel_durable_timers` | a gauge with the label `state`, set by [`Timers::counts`] |
//! | `tickwheel_durable_lag_seconds` | a gauge, set by [`Timers::counts`] |
//!
//! ## History
//!
//! What is done is gone from the tables, and a dead timer has its last error. With [`WorkerBuilder::history`] a kind also keeps what became of
//! each attempt, for as long as that says: [`Timers::history`] lists when it was due, when it started, how late that was, how long it
//! took, which attempt it was, what came of it, with its error, by which worker, and in which trace. [`Timers::pace`] counts these by
//! kind and step of time, for a picture of the last hour. In SQL they are the table `tickwheel_history`, to be read.
//!
//! - **An attempt is in the history if and only if its outcome is written**, because it is one transaction: that in which the worker writes
//!   outcomes, that of a handler, or that in which [`Run::completion`] is executed. So a run of a worker that died has no row, because
//!   nobody knows how it ended. When it was the last attempt, the row of the death tells so.
//! - A handler in a transaction of PostgreSQL that sets another search path or role sets them back before it returns, or names the schema in the
//!   address: the row is written behind it. Whoever executes a completion needs the right to put rows into `tickwheel_history`.
//! - Of an error the first 4000 bytes are kept. A run that leaves its series takes its attempts along, so a dead timer has all its
//!   errors under its own key.
//! - What is older than the kind says is removed by its workers, within a minute, a thousand rows at a time and with pauses twice as
//!   long as that took, on the threads of calls. [`Timers::purge_history`] removes what is before a time at once.
//! - [`WorkerBuilder::keep_dead`] removes dead timers in the same way. They stay for ever by default.
//!
//! A kind without a history pays nothing: its statements are those of before. With one, a timer that is scheduled and runs cost 54 us of
//! processor time with PostgreSQL, the server's included, in place of 42, and 19 in place of 15 with SQLite; a row takes some 250 bytes
//! with its indexes. All lists read indexes: of a million attempts, a page, those of one timer, and the failures among them took 2 to 6
//! ms.
//!
//! ## Traces
//!
//! [`OpenOptions::trace_with`] is asked for the context of the trace in which a timer is scheduled, and
//! [`WorkerBuilder::continue_trace`](WorkerBuilder) (feature `tracing`) makes the span of its runs a part of that trace. What travels with the
//! timer is a text, such as a `traceparent` of W3C: [`NewTimer::trace`], the column `trace`, the parameter `trace` of
//! `tickwheel_schedule`, and [`Run::trace`]. Each run of a series has the trace of its schedule. With OpenTelemetry:
//!
//! ```ignore
//! let options = OpenOptions::new().trace_with(|| {
//!     let (mut fields, context) = (HashMap::new(), tracing::Span::current().context()); // of OpenTelemetrySpanExt
//!     TraceContextPropagator::new().inject_context(&context, &mut fields);
//!     fields.remove("traceparent")
//! });
//! let timers = options.open("postgres://me@localhost/shop")?;
//! let worker = timers.worker().continue_trace(|trace, span| {
//!     let fields = HashMap::from([("traceparent".to_owned(), trace.to_owned())]);
//!     _ = span.set_parent(TraceContextPropagator::new().extract(&fields));
//! });
//! ```
//!
//! Without OpenTelemetry it is whatever text says where a timer comes from:
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use std::sync::mpsc::channel;
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//! use tickwheel_durable::{NewTimer, OpenOptions};
//!
//! let options = OpenOptions::new().trace_with(|| Some("request 17".to_owned()));
//! let timers = options.open("sqlite::memory:")?;
//! let (tell, told) = channel();
//! let worker = timers
//!     .worker()
//!     .handle("mail", move |run| Ok(tell.send(run.trace().map(str::to_owned))?))
//!     .start(Scheduler::global())?;
//! timers.schedule(&NewTimer::new("mail", "4711", Duration::ZERO))?;
//! assert_eq!(told.recv()?.as_deref(), Some("request 17"));
//! # drop(worker);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ## Tenants
//!
//! Kinds share a worker, and workers share a database. Each kind has threads of its own, and a kind that had nothing to do is claimed
//! before one that has a backlog, so a kind that floods makes the others late by one small claim. These settings are of the kind that
//! was registered last:
//!
//! | | what it bounds | where |
//! | --- | --- | --- |
//! | [`WorkerBuilder::weight`] | the share of the claims while several kinds have something due | in this worker |
//! | [`WorkerBuilder::at_most`] | runs at the same time | in this worker |
//! | [`WorkerBuilder::at_most_in_all`] | runs at the same time | in all processes |
//! | [`WorkerBuilder::rate`] | starts within a time | in all processes |
//! | [`WorkerBuilder::serial_by`] | runs at the same time of each group, in the order of their due times | in all processes |
//!
//! ```
//! # #[cfg(feature = "sqlite")] {
//! use std::sync::mpsc::channel;
//! use std::time::Duration;
//! use tickwheel::Scheduler;
//! use tickwheel_durable::{NewTimer, Timers};
//!
//! let timers = Timers::open("sqlite::memory:")?;
//! let (tell, told) = channel();
//! let worker = timers
//!     .worker()
//!     .handle("charge", move |run| Ok(tell.send(run.key().to_owned())?))
//!     .serial_by('/') // one at a time for each customer
//!     .at_most_in_all(20) // the bank allows so many connections
//!     .rate(100, Duration::from_secs(1)) // and so many requests
//!     .handle("newsletter", |_| Ok(()))
//!     .at_most(1)
//!     .handle("alarm", |_| Ok(()))
//!     .weight(10) // ten times as many claims as a newsletter, while both have a backlog
//!     .start(Scheduler::global())?;
//! timers.schedule(&NewTimer::new("charge", "customer 7/invoice 1", Duration::ZERO))?;
//! timers.schedule(&NewTimer::new("charge", "customer 7/invoice 2", Duration::from_millis(5)))?; // after the first one
//! assert_eq!(told.recv()?, "customer 7/invoice 1");
//! assert_eq!(told.recv()?, "customer 7/invoice 2");
//! worker.stop(Duration::from_secs(5));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What holds for the limits over all processes:
//!
//! - **A limit is never exceeded by runs that have a lease.** A claim writes down what it takes in its own transaction, and such claims
//!   of a kind come one after the other. A run counts from its claim until its handler has returned and its outcome is written, also if
//!   its timer was cancelled or replaced in the meantime. If its worker dies, it counts until the lease ends, and not longer. If its
//!   worker was halted for longer than that, the run is [not current](Run::is_current) any more and its lease is left to end. A
//!   transaction that had not begun does not begin, and one that had counts until it ends. A run that has exceeded its time limit has
//!   failed, and does not count any more, although its handler may go on.
//! - **What is held back is not lost, and holds up no other kind and no other group.** It is claimed when a run of the kind ends in this
//!   process, or when the rate allows the next one. For the end of a run elsewhere the worker looks each 100 ms ([`HELD_BACK`]); for one
//!   group among many that others hold, it may take a second. A group of which 100,000 are due is passed over once, and not by each
//!   claim.
//!   A rate counts what is claimed. That starts at once, unless the database goes away in between; then it starts late, beside what is
//!   claimed by then.
//! - **Each worker applies its own limits**, and counts all runs that workers with limits have. So workers that disagree keep to the
//!   limit of the strictest only in part: give them the same. Runs of workers without limits for the kind, and of those of a version
//!   before 6 of the tables, do not count.
//! - **What a worker gives back when it stops stays the first of its group.** The group is held for 2.5 s more, so that workers which have
//!   passed over its later timers see it first.
//! - **A group is the text of the key before the separator**, so it works with every client, and without a column. A timer that has
//!   failed, or whose worker has died, waits for its next attempt, and those behind it go on.
//! - A kind without limits costs nothing more than before. With `at_most_in_all` and `rate`, nothing is claimed ahead of the threads, so
//!   very quick handlers wait for the database between two runs.
//!
//! SQLite has one writer at a time. A worker that works off a backlog leaves the file free for as long as it has had it, while other
//! processes write in it, so that their calls take milliseconds.
//!
//! ## In SQL, from any client
//!
//! In PostgreSQL, the migration makes these functions. They work in a transaction of yours, from every language and client. With
//! `at` or `after` left out, a timer is due now. Both are by the server's clock, and `after` counts from the call, not from the
//! begin of the transaction.
//!
//! ```sql
//! SELECT due, replaced FROM tickwheel_schedule('unpaid', '4711', 'two pears', after => '30 minutes');
//! SELECT due FROM tickwheel_schedule('unpaid', '4711', after => '30 minutes', keep => true); -- no row: it is there, and stays
//! SELECT due FROM tickwheel_schedule('report', 'daily', at => '2030-01-01 09:00Z', period_ms => 86400000);
//! SELECT * FROM tickwheel_schedule_many(ARRAY['mail', 'mail'], ARRAY['1', '2'], after => ARRAY[interval '1 h', '2 h']);
//! SELECT tickwheel_reset('unpaid', '4711', after => '1 day'); -- the new due time; NULL: none waits
//! SELECT tickwheel_cancel('unpaid', '4711'); -- the state that it was in; NULL: it is not there
//! SELECT state, due, attempts, error FROM tickwheel_get('unpaid', '4711');
//! SELECT tickwheel_requeue('mail', after => '1 min'); -- all dead ones of the kind; with a key only that one
//! SELECT attempt, started, outcome, error FROM tickwheel_history WHERE kind = 'mail' AND key = '4711' ORDER BY started DESC;
//! ```
//!
//! `tickwheel_schedule` takes `kind`, `key`, `payload` (bytes), `at`, `after`, `period_ms`, `rule`, `max_attempts`, `time_limit_ms`,
//! `keep` and `trace`, in this order or by name. A timer that is there is replaced, even if it runs; with `keep` it stays. What no
//! timer can be is refused with a message that says what to change. From tokio-postgres, sqlx, diesel or Python each of these
//! is a query with parameters. A payload is bytes. For one that is text, such as JSON, write `convert_to($2::text, 'UTF8')`: a
//! parameter of the type text is refused, and in a literal or a string without a type the server takes a backslash for the
//! begin of a byte's number.
//!
//! ```ignore
//! // tokio-postgres, with texts and a number of seconds
//! let sql = "SELECT due FROM tickwheel_schedule('unpaid', $1, convert_to($2::text, 'UTF8'), after => $3 * interval '1 second')";
//! client.query_opt(sql, &[&id, &json, &1800_f64]).await?;
//! // sqlx
//! let sql = "SELECT due FROM tickwheel_schedule('unpaid', $1, convert_to($2::text, 'UTF8'), after => $3 * interval '1 second')";
//! sqlx::query(sql).bind(&id).bind(&json).bind(1800_f64).fetch_optional(&mut *transaction).await?;
//! ```
//!
//! ```python
//! # psycopg. Bytes, such as text.encode(), need no conversion.
//! cursor.execute("SELECT due FROM tickwheel_schedule('unpaid', %s, convert_to(%s::text, 'UTF8'), after => %s)",
//!     (id, json, timedelta(minutes=30)))
//! ```
//!
//! What to know about locks and states:
//!
//! - **A call waits for a transaction that has changed the same timer**, and a handler's transaction
//!   (`WorkerBuilder::handle_in_postgres`, and the others) has changed its own timer. So a call for a key whose handler works in a
//!   transaction waits until that ends.
//! - **Call before you touch rows that the handler touches too.** The handler's transaction has locked its timer first and locks
//!   your rows next. If you lock the rows first and the timer next, the two wait for each other, and the server ends one of them
//!   (a deadlock).
//! - **For several timers, call `tickwheel_schedule_many`**, which locks them in the order of their names. Or call for their keys
//!   in one order, which is the same in all transactions.
//! - **`keep`, and [`Timers::schedule_if_absent`], leave a dead timer as it is too.** Nothing runs then, until it is requeued,
//!   replaced or cancelled.
//!
//! ## The price of a notice
//!
//! A commit that tells the workers something (`NOTIFY`) holds a lock of the whole PostgreSQL cluster until it is on the disk. So
//! such commits come one after the other, and many callers that schedule for the next minutes wait for each other. The owner of the
//! tables sets one of three ways, at any time, for all who use them. The call locks the tables: it waits for all transactions that
//! use them, and others wait for it. So set a `lock_timeout` before, and call again if it ran out:
//!
//! ```sql
//! SET lock_timeout = '2s';
//! SELECT tickwheel_set_notices('debounced'); -- or 'at once', which is the default, or 'never'
//! ```
//!
//! | | commits tell of timers that are due within 150 s | what is scheduled for sooner than a poll is late by | an idle worker |
//! | --- | --- | --- | --- |
//! | `at once` | each | a claim | asks once a minute |
//! | `debounced` | the first eight in a second; then the workers look each 10 ms for some seconds, and commits tell nothing for two | a claim, or under load up to 10 ms more | asks once a second |
//! | `never` | none, so `PREPARE TRANSACTION` works | a poll: a second, or as [`WorkerBuilder::poll_every`] says | asks once a second, or as it says |
//!
//! What is scheduled for later than the next poll is on time in each way, because the workers look ahead. In the first two ways, a
//! transaction that takes longer than a second, and has put in or moved a timer, always tells at its end. `PREPARE TRANSACTION`
//! fails in a transaction that tells something. The README has what each way costs.
//!
//! With several workers of a kind, the first way has another side: workers that are told of each timer take turns, so that one of them
//! claims it. If that one is gone, another does 10 to 30 ms later. In the other ways, and through a pooler, each worker that sees a
//! timer claims when it is due, and one gets it, which costs the server a claim for each worker.
//!
//! ## The tables
//!
//! Plain statements work too, in both databases. These columns of `tickwheel_timers` are for other programs:
//!
//! | column | type | what it is |
//! | --- | --- | --- |
//! | `kind`, `key` | text | the name, at most 200 and 1000 bytes; the pair is unique |
//! | `payload` | bytes | given to the handler; empty by default |
//! | `due` | `timestamptz`; in SQLite milliseconds since 1970, as an integer | when it is due first |
//! | `period_ms` | integer | the period of a series |
//! | `rule` | text | the rule of a series; `cron: ..` with the feature `cron` |
//! | `max_attempts`, `time_limit_ms` | integer | as in [`NewTimer`] |
//! | `trace` | text | the context of the trace of its runs, at most 1000 bytes |
//!
//! ```sql
//! -- PostgreSQL
//! INSERT INTO tickwheel_timers (kind, key, payload, due) VALUES ('mail', '4711', 'hello', now() + interval '3 days');
//! UPDATE tickwheel_timers SET due = now() + interval '1 day' WHERE kind = 'mail' AND key = '4711' AND state = 'waiting';
//! DELETE FROM tickwheel_timers WHERE kind = 'mail' AND key = '4711';
//! -- SQLite
//! INSERT INTO tickwheel_timers (kind, key, due) VALUES ('mail', '4711', 1000 * (unixepoch() + 3 * 86400));
//! ```
//!
//! - An `INSERT` of a timer that is there is an error, which aborts the transaction. `ON CONFLICT DO NOTHING` keeps the old one.
//! - An `UPDATE` of `due` moves a timer that waits. One that waits for another attempt begins anew, as with [`Timers::reset`]. Of
//!   a timer that runs, a change of `due` or `payload` is refused, because the end of the run would remove it. A dead timer is
//!   not moved either; `SET state = 'waiting'` brings it back.
//! - A `DELETE` cancels a timer in whatever state. If it runs, its run goes on, and nothing follows it.
//! - A row with both `period_ms` and `rule` is refused. So is `state = 'dead'` by hand, unless the same statement sets `held_until`
//!   to `'infinity'`, in SQLite to 9223372036854775807.
//!
//! The other columns are the workers', and may be read: `state` (`waiting`, `running` or `dead`), `attempts` (starts), `fence`,
//! `held_until` (the end of a lease, or the time of the next attempt), `owner`, `error`, `dead_since` and `dead_fence` (since when a
//! worker with [`keep_dead`](WorkerBuilder::keep_dead) knows that it is dead), and `wake`, which is when a worker
//! looks at the timer next. A timer that is done is deleted.
//!
//! ## Migrations
//!
//! [`Timers::open`] makes the tables, or brings those of an earlier version of this crate up to date. For a tool of your own, the
//! folder `migrations` of the package has them as numbered files of SQL, for PostgreSQL and for SQLite, which are run once each
//! in their order, each in one transaction: `psql -1 -v ON_ERROR_STOP=1 -f 0001_timers.sql`, or
//! `sqlite3 -bail timers.db 'BEGIN IMMEDIATE' '.read 0001_timers.sql' COMMIT`. A file that is run a second time, or before its
//! turn, fails.
//! `postgres::MIGRATIONS` and `sqlite::MIGRATIONS` are their texts. [`Timers::open_unmigrated`] changes nothing, and says what is
//! missing ([`Error::Unmigrated`]).
//!
//! The tables are in the first schema of the search path, or in that of `?schema=timers` in the address. `psql` gets it by
//! `PGOPTIONS='-c search_path=timers'`. The functions know their schema, so `timers.tickwheel_schedule(..)` works from any search
//! path.
//!
//! The names of the functions' schema stand in their texts, because a search path for each call costs more. So after a plain
//! `ALTER SCHEMA .. RENAME` they do not find the tables, and [`Timers::open`] says so. Stop the programs, do this in one transaction,
//! and start them with the new name:
//!
//! ```sql
//! -- To rename the schema
//! ALTER SCHEMA timers RENAME TO clocks;
//! DO $$ DECLARE function text; BEGIN
//!     FOR function IN SELECT pg_get_functiondef(oid) FROM pg_proc
//!         WHERE pronamespace = 'clocks'::regnamespace AND starts_with(proname, 'tickwheel_') LOOP
//!         EXECUTE regexp_replace(function, '[[:<:]]timers(?=[.]tickwheel_|'')', 'clocks', 'g');
//!     END LOOP;
//! END $$;
//! ```
//!
//! `tickwheel_schema` has the version of the tables, and the oldest version of this crate's tables that may still work with
//! them. So bring the tables up to date first, while the workers of the version before go on, and then the programs. A worker that
//! is older than the oldest stops at its next claim or look. A migration waits for the transactions that have written timers, and
//! others that want to write wait for it, so run it with a `lock_timeout`. A `tickwheel_get` that waits for a migration which adds a column
//! fails, and may be called again.
//!
//! Three roles are enough: the owner of the tables migrates. One works. One only schedules, with the functions or with statements:
//!
//! ```sql
//! -- The roles
//! GRANT USAGE ON SCHEMA timers TO works, schedules;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON timers.tickwheel_timers TO works, schedules;
//! GRANT SELECT ON timers.tickwheel_schema, timers.tickwheel_awake TO works, schedules;
//! GRANT INSERT, UPDATE ON timers.tickwheel_awake TO works;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON timers.tickwheel_workers, timers.tickwheel_limits, timers.tickwheel_holds TO works;
//! GRANT SELECT, INSERT, UPDATE, DELETE ON timers.tickwheel_history TO works;
//! GRANT USAGE ON SEQUENCE timers.tickwheel_fence TO works;
//! ```
//!
//! ## Coming from
//!
//! | there | here |
//! | --- | --- |
//! | Quartz: `JobKey`, `TriggerKey`; db-scheduler: `TaskInstanceId`; graphile-worker: `identifier`, `job_key` | kind and key |
//! | Quartz: a `Job` class; Sidekiq: a worker class; graphile-worker: a task function | [`WorkerBuilder::handle`] |
//! | `scheduleJob`, `perform_in(30.minutes, id)`, `add_job(.., run_at, job_key)` | [`Timers::schedule`] with a [`NewTimer`], a `Duration` or a `SystemTime` |
//! | `rescheduleJob`, db-scheduler's `reschedule` | [`Timers::reset`] |
//! | `deleteJob`, `cancel` | [`Timers::cancel`] |
//! | cron triggers of Quartz, with a time zone; Oban's and graphile-worker's crontab; River's periodic jobs; sidekiq-cron | `NewTimer::cron` and [`Timers::keep_series`], with the feature `cron`: see the page `cron` |
//! | other calendars | [`NewTimer::rule`] and [`WorkerBuilder::rules`] |
//! | Quartz: `MISFIRE_INSTRUCTION_DO_NOTHING`, `.._FIRE_ONCE_NOW`, `.._IGNORE_MISFIRE_POLICY`; graphile-worker: `backfill` | `cron::Missed`: `Skip`, `Once`, `All`. Of a series with a period, runs that were missed are skipped, and one that is late runs at once |
//! | Sidekiq's retries and dead set | [`Retry`], [`State::Dead`], [`Timers::requeue`] |
//! | Sidekiq's death handlers | [`WorkerBuilder::on_dead`] |
//! | River UI, Oban Web, Sidekiq's `Web` | the package `tickwheel-durable-web` |
//! | completed and discarded jobs of River and Oban, `recent_jobs`; Oban's `Pruner`, River's `CompletedJobRetentionPeriod` and `DiscardedJobRetentionPeriod`, Sidekiq's `dead_timeout_in_seconds` | [`Timers::history`], [`WorkerBuilder::history`], [`WorkerBuilder::keep_dead`] |
//! | Oban's `cancel_all_jobs` | [`Timers::cancel_all`] |
//! | OpenTelemetry for Oban and River, `sidekiq-opentelemetry` | [`OpenOptions::trace_with`], [`Run::trace`] |
//! | Oban's `{:snooze, seconds}`; River's `JobSnooze` | [`Failure::snooze`] |
//! | Oban's `{:cancel, reason}`; River's error `JobCancel`; Sidekiq's `:kill` and `:discard` | [`Failure::for_good`], [`WorkerBuilder::give_up_if`] |
//! | River's `Client.JobCancel` and the job's context; Oban's `cancel_job` | [`Timers::cancel`] and [`Run::cancelled`] |
//! | Oban's and River's `timeout` of a worker | [`WorkerBuilder::time_limit`] |
//! | db-scheduler's heartbeats and dead executions | leases: [`WorkerBuilder::lease`] |
//! | Oban's queue limits, `global_limit` and `rate_limit`; Sidekiq's limiters and queue weights; groups of `BullMQ` | [`at_most`](WorkerBuilder::at_most), [`at_most_in_all`](WorkerBuilder::at_most_in_all), [`rate`](WorkerBuilder::rate), [`weight`](WorkerBuilder::weight), [`serial_by`](WorkerBuilder::serial_by) |
//! | `Oban.Testing`, Oban's `drain_queue`; River's `rivertest` | the module `testing`, which has a table of both |
//! | graphile-worker's and River's command lines, Sidekiq's and Oban's tasks for a console | the command line `tickwheel-durable`, in the repository's `durable/cli` |
//! | the `poll_interval` of all of them | the wheel, and news from the server; [`WorkerBuilder::poll_every`] as a fallback |
//!
//! With the feature `native-tls`, connections have TLS as `sslmode` in the address says, as with libpq, and
//! `postgres::Postgres::with_tls` takes a connector of yours. `postgres::Postgres::with_pool` uses the connections of your
//! service's own pool.
//!
//! ## In async code
//!
//! [`Timers::asynchronous`] returns the same calls as futures, for any runtime. A call is a message to a thread of the crate,
//! which has the connection, so no thread of the runtime waits, and none is started for a call. A future that is dropped
//! before its call has begun takes it back; see [`AsyncTimers`].
//!
//! The calls of [`Timers`] wait for the database. In a runtime's own thread they work too, but hold that thread up.
//!
//! A handler may be a future on a runtime of yours: [`WorkerBuilder::handle_async`]. It is bounded by a number of runs, and
//! not of threads, and is dropped when its time limit is over. [`Worker::stopped`] waits for the end of a worker as a future.
//!
//! At most ten calls have a connection at the same time ([`OpenOptions::max_connections`]). Others wait, also while the server
//! has no room for another client, and fail with [`Error::TooManyClients`] after ten seconds.
//!
//! ## When one PostgreSQL is not enough
//!
//! All workers of a kind claim from one index, and each run costs some row versions that vacuum must clear. Two cores, for
//! the server and the workers, did 50,000 to 63,000 runs a second with one, two and four workers (`benches/queues`). Before
//! that is too little: batch what is scheduled ([`Timers::schedule_all`]), or give a kind that floods a database of its own.
//! Partitioning the table by kind keeps each index small, but the unique constraint must contain the partition key, as it does.
//!
//! Then spread the timers over several databases, with `Timers::sharded`:
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! # fn with() -> tickwheel_durable::Result<()> {
//! # use std::time::Duration;
//! # use tickwheel::Scheduler;
//! use tickwheel_durable::{NewTimer, Timers};
//!
//! let timers = Timers::sharded(["postgres://me@a.internal/timers", "postgres://me@b.internal/timers"])?;
//! let worker = timers
//!     .worker()
//!     .handle("mail", |run| {
//!         println!("{}", run.key());
//!         Ok(())
//!     })
//!     .start(Scheduler::global())?;
//! timers.schedule(&NewTimer::new("mail", "4711", Duration::from_secs(1800)))?; // on one of them
//! # drop(worker);
//! # Ok(())
//! # }
//! ```
//!
//! Each timer is on one of them, its **home**, by a hash of its kind and key. The databases know nothing of each other.
//!
//! | call | what it does |
//! | --- | --- |
//! | by key | uses the home alone |
//! | [`schedule_all`](Timers::schedule_all) | is one transaction on each database: all or none of its timers there |
//! | [`list`](Timers::list), [`history`](Timers::history), [`counts`](Timers::counts), [`pace`](Timers::pace), [`requeue_all`](Timers::requeue_all), [`cancel_all`](Timers::cancel_all) | uses all, at the same time. Lists are in one order, and pages leave out nothing; each database is asked for a whole page |
//! | [`now`](Timers::now) | is the earliest of their times. A due time is by the clock of the timer's own database |
//! | [`worker`](Timers::worker) | is a worker on each, with the same handlers, in one [`Worker`]. A handler in a transaction gets one of the timer's own database |
//!
//! **If one is away**, calls for its timers fail, and [`Error::Shards`] has its number, its place, and the reason. What is on
//! the others runs on time, and calls by key for them work. A call over all is made on the others too, and fails with the
//! names of those that have not done their part. [`Timers::shards`] has each database by itself, for a list of those that are
//! there. A service and its workers start as long as one can be reached; one that does not answer, or has no room for a connection,
//! holds up each by a second. A call that was sent on a connection before its server was halted waits until the server goes on, or the
//! connection ends. [`WorkerBuilder::on_error`] is told once, with its name. It is used when it is back.
//!
//! **The list** must have the same databases in the same order in all processes: the number counts, and not the address, so
//! addresses may differ, and a database may move to another server. Have more databases than servers from the beginning, and move
//! databases (with PostgreSQL's replication, or `pg_dump`) when you have more servers. That loses nothing and runs nothing twice, and
//! needs nothing of this crate. Each costs a process that works two connections while nothing is due, and more while it runs timers:
//! one for outcomes and starts, one for each handler that is in a transaction, and those of calls, up to
//! [`OpenOptions::max_connections`]. It also costs threads: three, and one to [`threads`](WorkerBuilder::threads) for each kind. These
//! numbers, [`async_runs`](WorkerBuilder::async_runs) and [`at_most`](WorkerBuilder::at_most) count for each database by itself, so a
//! process may run as many times more as there are databases. Name each database once: one that is there twice has its timers twice in
//! lists.
//!
//! **If the list gets longer**, one of `n` timers has the new database as its home. Open it at the end of the list with
//! `OpenOptions::search_all`: a call by key then looks for the timer on all of them, beginning at the home, and schedules it where
//! it is. Workers run what is on their database, whoever put it there. All programs that schedule, reset or cancel must change to
//! the longer list at the same time, because one with the shorter list does not look at the new database. Two that schedule the same
//! key at the same moment, while the old timer ends elsewhere, may leave two. `timers.list(..)` tells what is not at home:
//! `timer.shard != timers.home(&timer.kind, &timer.key)`. When nothing is, leave the option out. The list does not get shorter.
//!
//! **A transaction of yours** is on one database, and so is a timer that you schedule in it. If the orders are spread by the same hash,
//! that is its home. If not, use `search_all`, or [`Timers::shards`] for calls about it. The same goes for a run of a series that
//! has failed and become a timer of its own: it stays where the series is, and [`Timer::shard`] says where that is. Fencing
//! numbers grow in each database by itself.
//!
//! The home is the number, from 0, with the highest SHA-256 of number, `/`, kind, `/` and key as UTF-8. Here it is in SQL and in Python,
//! for three databases:
//!
//! ```sql
//! SELECT shard FROM generate_series(0, 2) AS shard
//! ORDER BY sha256(convert_to(shard || '/' || $1 || '/' || $2, 'UTF8')) DESC LIMIT 1;
//! ```
//!
//! ```python
//! max(range(3), key=lambda shard: hashlib.sha256(f"{shard}/{kind}/{key}".encode()).digest())
//! ```
//!
//! | kind | key | of 2 | of 3 | of 8 |
//! | --- | --- | --- | --- | --- |
//! | `mail` | `1` | 0 | 0 | 6 |
//! | `mail` | `2` | 1 | 1 | 3 |
//! | `mail` | the empty text | 1 | 2 | 6 |
//! | `cancel order` | `4711` | 1 | 2 | 3 |
//! | `Zahlung` | `Käse/7` | 0 | 0 | 0 |
//! | `a/b` | `c` | 1 | 2 | 6 |
//!
//! The page [`distributed`] compares this crate's statements with what Citus, `YugabyteDB` and `CockroachDB` document. Beyond that take a
//! broker's delayed delivery: RabbitMQ with a dead-letter queue, Pulsar's `deliverAfter`, SQS up to fifteen minutes. They
//! give up the cancel by key, the reset, and the common transaction.
//!
//! ## Tests
//!
//! With the feature `testing`, in your `dev-dependencies`, the module `testing` has a store in memory on a virtual clock, a worker that
//! runs your handlers on the test's thread when it is told to, runs for unit tests, and assertions on what is scheduled. A month of
//! timers takes as long as its handlers.
//!
//! ## Another store
//!
//! [`Store`], [`Connection`] and [`Table`] are public, and the workers use nothing else. A store needs one clock that all
//! processes share, an atomic way to take a row that nobody else has, a number that only grows, and durable writes.
//! MySQL 8 has all of it (`SKIP LOCKED`), and needs polling, because it tells nobody of news. Redis needs scripts, and its
//! durability is what its settings make it. Handlers get whatever type of transaction the store has ([`TransactionType`],
//! [`WorkerBuilder::handle_in`]). The contract is STORE-1 to STORE-10 in `src/store.rs`, and
//! `tests/store.rs` checks it.
//!
//! The page [`design`] tells how the crate works inside.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// What a worker's threads do is told in `worker/shared.rs`; `store.rs` is what they ask of a database.
mod asynchronous;
mod clock;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod columns;
mod connections;
#[cfg(feature = "cron")]
pub mod cron;
#[cfg(doc)]
pub mod design;
#[cfg(doc)]
pub mod distributed;
mod error;
mod failure;
mod handler;
mod history;
mod panics;
#[cfg(feature = "postgres")]
pub mod postgres;
mod rules;
mod sharded;
mod sight;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod timer;
mod timers;
mod worker;

pub use asynchronous::AsyncTimers;
pub use error::{Error, Result, StopReason};
pub use failure::{Failure, HandlerResult, Retry};
pub use handler::{Run, Work};
pub use history::{Attempt, HistoryFilter, LONGEST_ERROR, Outcome, Pace};
pub use sharded::ShardError;
pub use store::{
    AnyTransaction, Changed, Claim, Claimed, ClaimedTimer, Connection, Existing, Finish, Floor,
    HELD_BACK, Limits, Listener, Look, MOST_BYTES, News, Notices, Passed, Purge, Purged, Purpose,
    RunId, SCHEMA_VERSION, Store, Table, Then, Transacted, TransactionType, Transactions, WINDOW,
};
pub use timer::{
    Filter, KindCounts, LONGEST_KEY, LONGEST_KIND, LONGEST_TRACE, NewTimer, Repetition, Scheduled,
    State, Timer, When,
};
pub use timers::{OpenOptions, Timers};
pub use worker::{Worker, WorkerBuilder, WorkerStats};
