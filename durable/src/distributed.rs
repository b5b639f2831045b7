//! What holds on distributed engines that speak PostgreSQL. This page has no code, and **nothing on it was run**.
//!
//! It compares the statements of this crate with the documentation of three engines: Citus (its documentation of April 2025),
//! `YugabyteDB` (2025.1 and 2025.2) and `CockroachDB` (24.3 to 25.2). Where that says nothing, the table says "not documented".
//! Somebody who runs one of them may find more, or less.
//!
//! **None of the three takes the migrations as they are.** `Timers::sharded` over plain PostgreSQL servers
//! ([When one PostgreSQL is not enough](crate#when-one-postgresql-is-not-enough)) needs none of this. The nodes of Citus are such
//! servers, each by itself.
//!
//! | what this crate uses | for what | Citus, distributed tables | `YugabyteDB` | `CockroachDB` |
//! | --- | --- | --- | --- | --- |
//! | `LISTEN`, `pg_notify` | workers hear of new timers | not documented; of PostgreSQL, so sessions of the same node hear it | from 2025.2.3, if `ysql_yb_enable_listen_notify` is set on masters and tablet servers; an error before | no. With `?pgbouncer=true` a worker does not ask for it, and polls, but the triggers call `pg_notify` |
//! | triggers for each statement with `REFERENCING NEW TABLE` | one notice for a batch | triggers on distributed tables are refused, unless `citus.enable_unsafe_triggers` is on; on tables of one node they work | no transition tables: the migration fails | no such triggers, and no `REFERENCING`: the migration fails |
//! | `CREATE CONSTRAINT TRIGGER .. DEFERRABLE INITIALLY DEFERRED` | a notice at the end of a long transaction | as above | no constraint triggers: the migration fails | not in the documented form of `CREATE TRIGGER` |
//! | `BEFORE` triggers for each row, with `WHEN` and `UPDATE OF` | plain statements that would be lost are refused | as above | yes | yes, with `(OLD).due` in brackets; no list of columns in the documented form |
//! | functions in `plpgsql` | the calls by key, the triggers | yes | yes | in part: no `PERFORM` and no `EXECUTE`, and arguments have no numbers (`$1`), all of which the functions use |
//! | `FOR UPDATE SKIP LOCKED` | claims, extensions, outcomes | in queries of one shard alone. A claim is one if the table is distributed by `kind`, outcomes by number are not | yes | yes, in tables with one column family; dependable at READ COMMITTED |
//! | `UPDATE` with `nextval` and `clock_timestamp()` | a claim, in one statement | functions in an `UPDATE` of a distributed table must not be volatile: the claim fails | yes | yes |
//! | `UNIQUE (kind, key)` beside `PRIMARY KEY (id)` | a key is unique in its kind | both must contain the distribution column: the second does not, if the first does | yes | yes |
//! | recursive queries | lists | in queries of one shard alone | yes | yes |
//! | `nextval` grows from call to call | **the fencing number**, STORE-2 | the number of the node is part of it, so numbers of several nodes are not in the order of time: all workers must use one node | 100 numbers are cached in each connection, so they are not in the order of time: set `ysql_sequence_cache_minval` to 0 and the sequence to `CACHE 1` | not cached by default; each is a write. An order is not promised in words |
//! | identity columns | the number of a timer | as above | as above | the number need only be unique and the same for ever |
//! | READ COMMITTED | claims pass over each other's rows | that of PostgreSQL on each node | if `yb_enable_read_committed_isolation` is set; otherwise it is Snapshot, where claims conflict and are repeated | yes, by the setting in the address that this crate sends; stronger than PostgreSQL's within a statement |
//! | stored generated column | `wake` | yes | from 2025.1; a syntax error before | computed columns, with other words |
//! | `xmax` in `RETURNING` | whether a timer was replaced | not documented | system columns are an error: `tickwheel_schedule` fails | not documented |
//! | `ctid` | a claim, a start and an outcome find again what they have locked | in queries of one shard alone | not supported: each of them is an error | not documented |
//! | `CREATE UNLOGGED TABLE` | which kinds need no notice | yes | accepted from 2024.2 | not documented |
//! | `pg_advisory_xact_lock` | two processes migrate one after the other | of the node | from 2.25.1, if its flags are set | the functions are there and do nothing: migrate from one process |
//! | `LOCK TABLE` | a migration, a change of the notices | not documented | from 2025.1.1, as a preview | not documented |
//! | `fillfactor`, `autovacuum_..` of a table | dead rows | of each shard | storage parameters are an error: leave them out | not documented |
//! | one clock, `clock_timestamp()` | **due times**, STORE-1 | that of the node that executes it | that of the node of the connection | "on one of the cluster nodes" |
//!
//! # What follows
//!
//! - **The clock is not one.** With PostgreSQL, all processes ask one server for the time, so nothing is early by it. On a cluster two
//!   connections ask two nodes, and a timer may be early or late by as much as their clocks are apart.
//! - **Citus** keeps the promises if the tables are not distributed: those of one node, reached at that node's own address. That is
//!   one PostgreSQL, and several of them are a list for `Timers::sharded`. Tables that are distributed by `kind` lose the claim in one
//!   statement. With sharding by schema the whole schema is on one node, and the triggers need `citus.enable_unsafe_triggers`.
//! - **`YugabyteDB`** would need a migration of its own: a trigger for each row in place of the transition tables and of the constraint
//!   triggers, another way to tell whether a timer was replaced, sequences without a cache, and statements of the workers that find
//!   timers by their number in place of `ctid`. What else these use is documented to work, if READ COMMITTED is on.
//! - **`CockroachDB`** would need functions and triggers of its own, and workers that poll. It has no way to tell workers of news but
//!   change feeds, which are no part of the protocol.
//! - A store of your own ([another store](crate#another-store)) is the way to either of them. `tests/store.rs` is its measure.
