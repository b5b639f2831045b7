-- Version 7. What has become of attempts, when timers died, and the trace of whoever has scheduled a timer.
-- Tables of another version than 6 get none, which the column does not allow. So this file runs once, and in its turn.
UPDATE tickwheel_schema SET version = CASE version WHEN 6 THEN 7 END;

-- The context of a trace, such as a `traceparent`. A program of version 6 that replaces a timer leaves that of the old one.
ALTER TABLE tickwheel_timers ADD COLUMN trace TEXT;
CREATE TRIGGER tickwheel_timers_new_trace BEFORE INSERT ON tickwheel_timers
WHEN length(CAST(NEW.trace AS BLOB)) > 1000 OR instr(CAST(NEW.trace AS BLOB), x'00') > 0
BEGIN SELECT RAISE(ABORT, 'a trace has at most 1000 bytes, and not the character 0'); END;
CREATE TRIGGER tickwheel_timers_changed_trace BEFORE UPDATE OF trace ON tickwheel_timers
WHEN length(CAST(NEW.trace AS BLOB)) > 1000 OR instr(CAST(NEW.trace AS BLOB), x'00') > 0
BEGIN SELECT RAISE(ABORT, 'a trace has at most 1000 bytes, and not the character 0'); END;
-- Since when a worker that removes what is dead knows of a dead timer. It counts as long as the fencing number is the timer's, so a
-- timer that is brought back and dies again is dead anew, whoever has brought it back.
ALTER TABLE tickwheel_timers ADD COLUMN dead_since INTEGER;
ALTER TABLE tickwheel_timers ADD COLUMN dead_fence INTEGER;

-- Attempts of kinds with a history. A row is put in with the outcome, and is removed when it is too old.
CREATE TABLE tickwheel_history (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    due INTEGER NOT NULL,
    started INTEGER NOT NULL,
    late_us INTEGER NOT NULL,
    took_us INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    error TEXT,
    worker TEXT NOT NULL,
    trace TEXT,
    PRIMARY KEY (kind, started, fence)
) STRICT, WITHOUT ROWID;
CREATE INDEX tickwheel_history_key ON tickwheel_history (kind, key, started);
-- Of those that are looked for among many others.
CREATE INDEX tickwheel_history_failed ON tickwheel_history (kind, started) WHERE outcome <> 'done';
